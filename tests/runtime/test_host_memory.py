"""A stage whose state is in the memory of the host has the bits of one that is on its device, and takes less there."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from peers.building import build, initialize
from peers.fitting import MemoryBudget, NoMemoryError
from swarmflow.compute.demands import stage_memory
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.exact import EXPONENT
from swarmflow.compute.families import model_config
from swarmflow.compute.layout import FROZEN, layout_in_run
from swarmflow.compute.sums import Sums
from swarmflow.compute.working_weights import HostRows
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.served import Served
from tests.compute.families import tiny
from tests.compute.models import batch, config_of
from tests.further import more_of
from tests.runtime.manifests import SUMS, manifest

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
STEPS, MICROBATCHES, SCALE, RATE = 3, 2, 1 / 96, 0.01
GB = 1_000_000_000
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "lamb": {"optimizer": "lamb"},
    "sgd": {"optimizer": "sgd"},
    "adamw of 8 bits": {"state_bits": 8},
    "lamb of 8 bits": {"optimizer": "lamb", "state_bits": 8},
}


def test_what_stands_for_an_embedding_on_the_host_can_only_be_looked_up() -> None:
    values = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    rows, ids = HostRows.of(values, CPU), torch.tensor([[3, 0]])
    assert torch.equal(torch.nn.functional.embedding(ids, rows), values[ids])
    assert bool((torch.ones(2, 4) @ rows.T).isnan().all()), "not zeros, which nobody would see"


def run_of(**changes: Any) -> Manifest:  # noqa: ANN401  # fields of many types
    return manifest(microbatches=MICROBATCHES, microbatch_sequences=2, seq_len=12, **changes)


def stages(of: Manifest, state: str) -> list[Served]:
    """All stages of a run, as peers with this --state build them."""
    made = [build(of, MemoryBudget(CPU, state=state), number)[0] for number in range(of.stages)]
    for served in made:
        initialize(served, of)
        served.version = 0
    return made


def step_of(made: list[Served], of: Manifest, step: int) -> list[float]:
    """Compute a step's microbatches, reduce and apply it; the last one goes again from its input."""
    runners, losses = [served.runner(step) for served in made], []
    for runner in runners:
        runner.begin(EXPONENT)
    for index in range(MICROBATCHES):
        number, draw = step * MICROBATCHES + index, DrawKey(0, step, index)
        x, targets = batch(number)
        passed: list[Any] = [x]
        for runner in runners[:-1]:
            passed.append(runner.forward(number, passed[-1], draw))
        loss, _, gradient = runners[-1].loss(number, passed[-1], targets, draw, number)
        losses.append(loss)
        for runner in reversed(runners[:-1]):
            assert gradient is not None
            gradient = runner.backward(number, gradient, number)
    for served in made:
        for name, group in served.groups(step).items():
            served.reduced[name] = total_of(group.sums)
        assert served.update(step, SCALE, RATE)
    return losses


def total_of(own: Sums) -> Sums:
    """The sums of two peers with the same gradients, as an all-reduce makes them."""
    total = own.empty()
    total.total(0, own.elements, [own, own.pack(0, own.elements)])
    return total


def trained(of: Manifest, state: str) -> tuple[list[list[float]], list[dict[str, bytes]]]:
    """The losses of some steps, and the bytes of each stage's state after them."""
    made = stages(of, state)
    losses = [step_of(made, of, step) for step in range(STEPS)]
    return losses, [
        {name: bytes(served.state.read(name, 0, count)) for name, count in served.state.elements().items()}
        for served in made
    ]


# Each in every run: the optimizers, the ways to add up, the precisions; all of them together in more.
EVERY_RUN = {
    ("adamw", "exact", "bf16"),
    ("adamw", "blockwise16", "fp32"),
    ("lamb", "fp32", "bf16"),
    ("sgd", "exact", "fp32"),
    ("adamw of 8 bits", "fp32", "fp32"),
    ("lamb of 8 bits", "blockwise16", "bf16"),
}


@pytest.mark.parametrize(
    ("optimizer", "sums", "precision"),
    [*sorted(EVERY_RUN), *more_of(*sorted({*product(OPTIMIZERS, SUMS, ("fp32", "bf16"))} - EVERY_RUN))],
)
def test_the_bits_do_not_tell_where_the_state_is(optimizer: str, sums: str, precision: str) -> None:
    of = run_of(precision=precision, **SUMS[sums], **OPTIMIZERS[optimizer])
    assert trained(of, "host") == trained(of, "device")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama-tied", {"cut": ()}),
        ("llama-shared", {"delay": 1}),
        ("gpt_neox", {"dropout": True}),
        *more_of(*product(("llama-tied", "llama-shared"), ({"dropout": True},))),
        *more_of(*product(("llama-shared", "gpt_neox"), ({"cut": ()},))),
        *more_of(*product(("llama-tied", "gpt_neox"), ({"delay": 1},))),
    ],
    ids=str,
)
def test_nor_with_other_models_and_modes(changes: dict[str, Any], family: str, precision: str) -> None:
    of = run_of(model=config_of(family), precision=precision, **changes)
    assert trained(of, "host") == trained(of, "device")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", ["deepseek_v3", "mixtral"])
def test_nor_with_experts_and_what_no_gradient_trains(family: str, precision: str) -> None:
    config = tiny(family)
    of = run_of(model=config, hidden_size=config["hidden_size"], vocab_size=config["vocab_size"], precision=precision)
    of = replace(of, beside=layout_in_run(of, 0).beside)
    assert (FROZEN in stages(of, "host")[1].stage.groups) is (family == "deepseek_v3")
    assert trained(of, "host") == trained(of, "device")


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("tied", [True, False])
def test_a_stage_takes_what_is_counted_in_either_memory(tied: bool, sums: str, precision: str, delay: int) -> None:
    of = run_of(model=config_of("llama-tied" if tied else "llama"), precision=precision, delay=delay, **SUMS[sums])
    for number, served in enumerate(stages(of, "host")):
        device, host = memories(served)
        assert not storages(device).keys() & storages(host).keys()
        told = stage_memory(of, number, in_host_memory=True)
        logits = 3 * (2 if precision == "bf16" else 4) * 2 * 12 * of.vocab_size if served.stage.last else 0
        assert sum(storages(device).values()) == told.device_bytes - logits
        reduced = sum(group.sums.empty().nbytes for group in served.stage.groups.values())
        assert sum(storages(host).values()) + reduced == told.host_bytes


def test_in_bf16_a_parameter_takes_6_bytes_of_the_device() -> None:
    wide = model_config({**config_of("llama"), "hidden_size": 128, "intermediate_size": 512})
    of = run_of(model=wide, hidden_size=128, cut=(1, 3), precision="bf16", **SUMS["fp32"])
    for served in stages(of, "host"):
        parameters = sum(group.params.numel() for group in served.stage.groups.values())
        small = sum(
            4 * entry.elements for g in served.stage.groups.values() for entry in g.entries if len(entry.shape) < 2
        )
        assert sum(storages(memories(served)[0]).values()) <= 6 * parameters + small


def memories(served: Served) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors of a stage on the device, and those in the memory of the host."""
    device: list[Tensor] = []
    host: list[Tensor] = []
    for runner in served.runners:
        assert runner.copies is not None
        device += runner.copies.tensors
        for group in runner.stage.groups.values():
            device += [group.grads, *group.sums.tensors()]
            host += group.tensors().values()
    return device, host


def storages(tensors: list[Tensor]) -> dict[int, int]:
    """Bytes of each storage of tensors, by its address."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in found if storage.nbytes()}


def budget(free_bytes: int, host_bytes: int = 1000 * GB, **given: Any) -> MemoryBudget:  # noqa: ANN401
    """What a peer may use that has a GPU with so much free memory."""
    return MemoryBudget(GPU, free_bytes=lambda device: free_bytes if device == GPU else host_bytes, **given)


def test_the_host_has_the_state_where_the_device_is_too_small() -> None:
    of = run_of()
    whole, copies = (stage_memory(of, 1, in_host_memory=in_host) for in_host in (False, True))
    assert copies.device_bytes < whole.device_bytes
    budget(whole.device_bytes + 1).check_layout(of, 1, in_host_memory=False)
    small = budget(whole.device_bytes)
    with pytest.raises(NoMemoryError, match=r"cuda:0 has .* free: stage 1 needs more than"):
        small.check_layout(of, 1, in_host_memory=False)
    small.check_layout(of, 1, in_host_memory=True)
    small.check_stage(of, 1)
    with pytest.raises(NoMemoryError, match="in the memory of the host"):
        budget(copies.device_bytes).check_stage(of, 1)
    with pytest.raises(NoMemoryError, match=r"takes .* in the memory of the host, of which .* are free"):
        budget(10 * GB, copies.host_bytes - 1).check_layout(of, 1, in_host_memory=True)
    assert budget(copies.device_bytes, state="device").unfit(of) == (), "what a user wants is tried"


def test_a_cpu_keeps_the_state_where_it_computes_unless_it_is_told_otherwise() -> None:
    assert MemoryBudget(CPU).layouts == (False,)
    assert MemoryBudget(CPU, state="host").layouts == (True,)
    assert MemoryBudget(GPU).layouts == (False, True)
    of = replace(run_of(), precision="bf16")
    memory = stage_memory(of, 1, in_host_memory=True)
    tight = MemoryBudget(CPU, memory.all_bytes + 200_000_000, None, 0, state="host")
    with pytest.raises(NoMemoryError, match="its state in the memory of the host"):
        tight.check_layout(of, 1, in_host_memory=True)
