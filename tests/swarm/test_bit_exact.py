"""With exact accumulation a swarm learns the very bits that one process learns, whichever peer computed what."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from swarmflow.boundary import Boundary
from swarmflow.chaos.plain import microbatch
from swarmflow.compute.codec import Codec, codec_named
from swarmflow.compute.exact import EXPONENT, FixedPoint
from swarmflow.compute.families import model_config
from swarmflow.compute.flat import FlatGroup, rounding_of
from swarmflow.compute.grid import Blockwise
from swarmflow.compute.layout import OWN
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import Stage, build_stage
from swarmflow.compute.topk import kept_share_of
from swarmflow.compute.weights import load_stage
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from tests.swarm.boundary_twin import exported
from tests.swarm.reference import Recipe, load_model, parameters
from tests.swarm.runs import LONG, learnt_by_all, prepare, recipe, settings

CUT = (1,)
AS_THE_LOOP = ("--device", "cpu")  # a GPU rounds the sums of a product otherwise
Learnt = tuple[dict[str, bytes], list[float]]  # every parameter's bytes, and the gradient norm of each step


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("codec", "train", "model_keys"),
    [
        pytest.param("none", {"accumulate": "exact"}, {}, marks=pytest.mark.exhaustive),
        pytest.param("blockwise8", {"accumulate": "exact"}, {}, marks=pytest.mark.extended),
        ("blockwise8", {"reduce_codec": "blockwise16"}, {}),
        pytest.param("blockwise8", {"accumulate": "exact", "delay": 1}, {}, marks=pytest.mark.exhaustive),
        pytest.param(
            "blockwise8", {"reduce_codec": "blockwise16"}, {"boundary": "maxout:4"}, marks=pytest.mark.extended
        ),
        pytest.param(
            "blockwise8",
            {"accumulate": "exact", "delay": 1},
            {"boundary": "bottleneck:8"},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param("blockwise8", {"reduce_codec": "blockwise16"}, {"shared_blocks": 1}, marks=pytest.mark.extended),
        pytest.param(
            "blockwise8", {"accumulate": "exact", "delay": 1}, {"shared_blocks": 1}, marks=pytest.mark.exhaustive
        ),
    ],
    ids=[
        "none",
        "blockwise8",
        "blockwise8 and blockwise16",
        "delayed",
        "maxout",
        "bottleneck, delayed",
        "one block",
        "one block, delayed",
    ],
)
def test_no_bit_tells_which_peer_computed_what_and_when(
    codec: str, train: dict[str, Any], model_keys: dict[str, Any], tmp_path: Path, forks: ForkServer
) -> None:
    model, corpus = prepare(tmp_path, "gpt2")
    shared_blocks = model_keys.get("shared_blocks")
    if shared_blocks is not None:
        make_blocks_equal(model)
    of = recipe("adamw", steps=LONG)
    rounding = rounding_of(train.get("accumulate", "fp32"), train.get("reduce_codec", "none"), of.microbatches)
    assert rounding is not None
    run = settings(model, corpus, of, stages=2)
    run["model"] |= {"cut": list(CUT), **model_keys}
    run["train"] |= {"codec": codec, "checkpoint_every": 10, **train}
    learnt, norms_of_swarm = together(tmp_path / "swarm", run, forks)
    of, codecs = replace(of, steps=len(norms_of_swarm)), [codec_named(codec)]
    boundary = Boundary.parse(model_keys["boundary"]) if "boundary" in model_keys else None
    how: dict[str, Any] = {"delay": train.get("delay", 0), "boundary": boundary, "shared_blocks": shared_blocks}
    wanted, norms = alone(model, corpus, of, lambda step: codecs, rounding, **how)
    assert norms_of_swarm == norms
    assert {name: learnt[name] for name in wanted} == wanted


def make_blocks_equal(folder: Path) -> None:
    """Give all blocks of the model in a folder the weights of the first one."""
    model = load_model(folder)
    first, *others = model.get_submodule("transformer.h").children()
    for block in others:
        block.load_state_dict(first.state_dict())
    model.save_pretrained(folder)


def together(folder: Path, run: dict[str, Any], forks: ForkServer) -> Learnt:
    """What two peers a stage learn, between which microbatches go as they happen to go.

    One of them has its state in the memory of the host, and computes its blocks again in the backward pass.
    """
    with LocalSwarm(folder, run, forks=forks) as swarm:
        swarm.start_trainer()
        for stage in (0, 1):
            for state, activations in (("device", "keep"), ("host", "recompute")):
                swarm.start_peer(*AS_THE_LOOP, "--state", state, "--activations", activations, stage=stage)
        version = learnt_by_all(swarm, [2, 2])
        steps = swarm.steps()[:version]
    step = swarm.output / f"step-{version}"
    found = exported(step) if "boundary" in run["model"] else parameters(load_model(step))
    return {name: _bytes(value) for name, value in found.items()}, [step["grad_norm"] for step in steps]


def alone(
    model: Path,
    corpus: Path,
    of: Recipe,
    codecs: Callable[[int], Sequence[Codec]],
    rounding: FixedPoint | Blockwise,
    *,
    delay: int = 0,
    cut: tuple[int, ...] = CUT,
    boundary: Boundary | None = None,
    shared_blocks: int | None = None,
) -> Learnt:
    """What one process learns that runs the same stages in turn, the last microbatch of a step first.

    codecs: of the boundaries, by step. delay 1: a step's gradients are those of the parameters before the last update.
    """
    config, numbers = model_config(model, shared_blocks), range(len(cut) + 1)
    stages = [build_stage(config, cut, n, device="cpu", rounding=rounding, boundary=boundary) for n in numbers]
    for stage in stages:
        load_stage(stage, model)
    given = of.optimizer
    betas = (given["betas"][0], given["betas"][1])
    optimizer = make_optimizer(
        OptimizerSettings(given["name"], betas, eps=given["eps"], weight_decay=given["weight_decay"])
    )
    for stage in stages:
        for group in stage.groups.values():
            group.allocate(optimizer.state_names())
    norms, groups = [], [group for stage in stages for group in stage.groups.values()]
    before = [group.params.clone() for group in groups]
    for step in range(of.steps):
        latest = [group.params.clone() for group in groups]
        if delay:
            _set(groups, before)
        norms.append(_accumulate(stages, corpus, of, step, codecs(step)))
        _set(groups, latest)
        before = latest
        count = of.microbatches * of.sequences * of.seq_len
        scale = min(1.0, 1.0 / (norms[-1] + 1e-6)) / count
        for stage in stages:
            for group in stage.groups.values():
                optimizer.apply(group, group.sums.gradient(), scale, given["lr"], step)
                group.learnt(group.sums, step)
            stage.zero_grads()
    return {name: _bytes(value) for stage in stages for name, value, _ in stage.named_parameters()}, norms


def _set(groups: list[FlatGroup], params: list[Tensor]) -> None:
    for group, values in zip(groups, params, strict=True):
        group.params.copy_(values)


def _accumulate(stages: list[Stage], corpus: Path, of: Recipe, step: int, codecs: Sequence[Codec]) -> float:
    """Adds up the gradients of a step, on all stages that have them for shared weights; the norm of their mean."""
    *before, last = runners = [StageRunner(stage) for stage in stages]
    for runner, codec in zip(runners[1:], codecs, strict=True):
        runner.begin(EXPONENT, kept_share=kept_share_of(codec))
    tokens = torch.frombuffer(bytearray(corpus.read_bytes()), dtype=torch.uint8).long()
    for index in reversed(range(of.microbatches)):
        x, y = microbatch(tokens, of, step, index)
        number = step * of.microbatches + index
        for runner, codec in zip(before, codecs, strict=True):
            x = _sent(runner.forward(index, x), codec)
        _, _, grad = last.loss(index, x, y, number=number)
        for runner, codec in zip(reversed(before), reversed(codecs), strict=True):
            assert grad is not None
            grad = runner.backward(index, _sent(grad, codec), number)
    groups = [stage.groups[OWN] for stage in stages]
    for name in dict.fromkeys(name for stage in stages for name in stage.layout.spread):
        holders = [stage.groups[name] for stage in stages if name in stage.groups]
        total = holders[0].sums.empty()
        total.total(0, total.elements, [holder.sums for holder in holders])
        for holder in holders:
            holder.sums.put(0, total.elements, total.pack(0, total.elements))
        groups.append(holders[0])
    squared = sum(group.sums.sum_of_squares() for group in groups)
    return math.sqrt(squared) / (of.microbatches * of.sequences * of.seq_len)


def _sent(x: Tensor, codec: Codec) -> Tensor:
    return codec.decode(codec.encode(x), x.shape, x.dtype)


def _bytes(value: Tensor) -> bytes:
    return value.detach().contiguous().numpy().tobytes()
