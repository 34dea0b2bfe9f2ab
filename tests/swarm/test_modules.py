"""A swarm learns networks that are no decoders, cut by their graphs, as a plain loop does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from swarmflow.compute.graphs.dropping import without_dropout
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from tests.compute.graphs.networks import of_transformers
from tests.swarm.networks import collate, collate_images, collate_sentences, two_branches
from tests.swarm.runs import FINISH_S

WIDTH, ITEMS, MICROBATCHES, STEPS, STAGES = 16, 4, 4, 30, 3
RATE = 0.05
RECORDS, HELD_OUT = 50, 10  # two microbatches, and two records that fill none
HERE = "tests.swarm.networks"
NAME = f"{HERE}:two_branches"
OF_TRANSFORMERS = "tests.compute.graphs.networks:of_transformers"

Record = dict[str, Any]
Learnt = tuple[dict[str, Tensor], list[float], float]


def settings(
    folder: Path, records: list[Record], module: str, config: dict[str, object], collate_function: str, steps: int
) -> dict[str, Any]:
    """RUN.toml, and the records that it names."""
    data, held_out = folder / "records.jsonl", folder / "held-out.jsonl"
    data.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    held_out.write_text("".join(f"{json.dumps(record)}\n" for record in records[:HELD_OUT]))
    return {
        "run": {"name": "test", "output": "out"},
        "model": {"module": module, "module_config": config, "stages": STAGES},
        "data": {"path": str(data), "collate": f"{HERE}:{collate_function}", "validation_path": str(held_out)},
        "optimizer": {"name": "sgd", "lr": RATE, "momentum": 0.9, "weight_decay": 0.1},
        "train": {
            "steps": steps,
            "microbatches": MICROBATCHES,
            "microbatch_sequences": ITEMS,
            "codec": "none",
            "reduce_codec": "none",
            "checkpoint_every": steps,
            "validate_every": steps,
        },
    }


def drawn_records() -> list[Record]:
    """Random features and labels."""
    drawn = random.Random(0)
    return [{"features": [drawn.gauss(0, 1) for _ in range(8)], "label": drawn.randrange(5)} for _ in range(RECORDS)]


def plain_loop(
    make: Callable[[], nn.Module],
    records: list[Record],
    collated: Callable[[list[Record]], dict[str, Tensor]],
    steps: int,
    rate: float = RATE,
) -> Learnt:
    """The parameters after all steps, the loss of each, and that of the held-out records after all."""
    torch.manual_seed(0)
    module = make()
    optimizer = torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9, weight_decay=0.1)
    losses = []

    def loss_of(batch: list[Record]) -> Tensor:
        with without_dropout():
            output = module(**collated(batch))
        loss = output["loss"] if isinstance(output, dict) else output
        assert isinstance(loss, Tensor)
        return loss

    for step in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for index in range(MICROBATCHES):
            first = (step * MICROBATCHES + index) * ITEMS
            loss = loss_of([records[(first + place) % len(records)] for place in range(ITEMS)])
            torch.autograd.backward(loss)
            total += float(loss.detach())
        count = MICROBATCHES * ITEMS
        with torch.no_grad():
            for parameter in module.parameters():
                assert parameter.grad is not None
                parameter.grad /= count
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(total / count)
    with torch.no_grad():
        held_out = [float(loss_of(records[first : first + ITEMS])) for first in (0, ITEMS)]
    named = module.named_parameters(remove_duplicate=False)
    return {name: parameter.detach() for name, parameter in named}, losses, sum(held_out) / (2 * ITEMS)


def assert_learnt(swarm: LocalSwarm, wanted: Learnt) -> dict[str, Tensor]:
    """Compares with the plain loop; returns the parameters of the export."""
    steps = swarm.steps()
    found: dict[str, Tensor] = {}
    for file in sorted((swarm.output / "final").glob("*.safetensors")):
        found |= load_file(file)
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[0][name], rtol=1e-4, atol=1e-5, msg=name)
    torch.testing.assert_close([step["loss"] for step in steps], wanted[1], rtol=1e-5, atol=0)
    assert steps[-1]["validation_loss"] == pytest.approx(wanted[2], rel=1e-4)
    return found


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_swarm_learns_a_network_of_two_branches_whoever_dies(tmp_path: Path, forks: ForkServer) -> None:
    records = drawn_records()
    run = settings(tmp_path, records, NAME, {"width": WIDTH}, "collate", STEPS)
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        swarm.start_trainer()
        for number in range(2 * STAGES):
            swarm.start_peer("--trust-module", NAME, stage=number % STAGES)
        stranger = swarm.start_peer(stage=0)
        stranger.expendable = True
        swarm.wait(lambda: stranger.exit_code, "the end of a peer that does not trust the module", FINISH_S)
        assert f"add --trust-module {NAME}" in stranger.log.read_text()
        swarm.wait_steps(8, FINISH_S)
        swarm.peers[1].kill()
        swarm.wait_finished(FINISH_S)
    wanted = plain_loop(lambda: two_branches(WIDTH), records, collate, STEPS)
    assert assert_learnt(swarm, wanted).keys() == wanted[0].keys()
    assert {sum(step["peers"]) for step in swarm.steps()} >= {2 * STAGES - 1}
    described = json.loads((swarm.output / "final" / "module.json").read_text())
    assert described == {"module": NAME, "module_config": {"width": WIDTH}}


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", ["resnet-18", "vit", "t5"])
def test_a_swarm_learns_models_of_transformers_that_are_no_decoders_whoever_dies(
    kind: str, tmp_path: Path, forks: ForkServer
) -> None:
    steps = 20
    drawn = random.Random(0)
    sentences, side = kind == "t5", 32 if kind == "resnet-18" else 16
    records: list[Record]
    if sentences:
        records = [{"words": [drawn.randrange(1, 64) for _ in range(14)]} for _ in range(RECORDS)]
    else:
        records = [
            {"pixels": [drawn.randrange(256) for _ in range(3 * side * side)], "label": drawn.randrange(4)}
            for _ in range(RECORDS)
        ]
    config: dict[str, object] = {"kind": kind, "items": ITEMS}
    collated = collate_sentences if sentences else collate_images
    run = settings(tmp_path, records, OF_TRANSFORMERS, config, collated.__name__, steps)
    # Batch normalisation over four items makes large what the order of additions changes: after 20 steps of a plain
    # loop with a rate of 0.01 56% of a parameter, of 0.0005 0.01%.
    rate = 0.0002 if kind == "resnet-18" else RATE
    run["optimizer"]["lr"] = rate
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        swarm.start_trainer(timeout_s=150)
        for number in range(2 * STAGES):
            swarm.start_peer("--trust-module", OF_TRANSFORMERS, stage=number % STAGES)
        swarm.wait_steps(5, FINISH_S)
        swarm.peers[1].kill()
        swarm.wait_finished(FINISH_S)
    wanted = plain_loop(lambda: of_transformers(kind, ITEMS), records, collated, steps, rate)
    found = assert_learnt(swarm, wanted)
    assert len({tensor.data_ptr() for tensor in wanted[0].values()}) == len(found)


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize(
    ("accumulate", "precision", "codec", "cut"),
    [
        ("exact", "bf16", "blockwise8", ["left.1", "right"]),
        ("fp32", "fp32", "blockwise8", ["left.1", "right"]),  # rounded blockwise before they add up
        ("exact", "fp32", "adatopk", ["right"]),  # the slowest boundary carries what is asked for, whatever its link
    ],
)
def test_deaths_change_no_bit_of_what_is_learnt(
    accumulate: str, precision: str, codec: str, cut: list[str], tmp_path: Path, forks: ForkServer
) -> None:
    """With compressed boundaries, moments of 8 bits, and sums that do not depend on their order."""
    run = settings(tmp_path, drawn_records(), NAME, {"width": WIDTH}, "collate", STEPS)
    run["model"] = {"module": NAME, "module_config": {"width": WIDTH, "dropout": 0.2}, "cut": cut, "dropout": True}
    run["optimizer"] = {"name": "adamw", "lr": 1e-3, "state_bits": 8}
    run["train"] |= {"codec": codec, "reduce_codec": "blockwise16", "accumulate": accumulate}
    run["train"]["precision"] = precision
    stages = len(cut) + 1
    found: list[list[bytes]] = []
    for deaths in (False, True):
        with LocalSwarm(tmp_path / f"deaths-{deaths}", run, forks=forks) as swarm:
            swarm.start_trainer()
            for number in range(2 * stages):
                again = ("--activations", "recompute") if number < stages else ()
                swarm.start_peer("--trust-module", NAME, *again, stage=number % stages)
            for after, victim in ((5, 1), (12, 2)) if deaths else ():
                swarm.wait_steps(after, FINISH_S)
                swarm.peers[victim].kill()
            swarm.wait_finished(FINISH_S)
        found.append([file.read_bytes() for file in sorted((swarm.output / "final").glob("*.safetensors"))])
    assert len(found[0]) == stages
    assert found[0] == found[1]
