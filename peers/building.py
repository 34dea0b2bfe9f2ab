"""Builds the stage that a peer was granted, without its weights, and measures what a microbatch takes of memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch

from peers.fitting import MemoryBudget, MicrobatchMemory, NoMemoryError
from swarmflow.compute.blocks import alignment
from swarmflow.compute.compiled_blocks import compile_blocks
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.flat import rounding_of
from swarmflow.compute.graphs.capture import recapture
from swarmflow.compute.graphs.description import graph_model, is_graph
from swarmflow.compute.graphs.stage import GraphStage
from swarmflow.compute.graphs.user_functions import first_values, load_function
from swarmflow.compute.grouped_stage import GroupedStage
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.runner import StageRunner, largest_block_bytes
from swarmflow.compute.stage import build_stage
from swarmflow.compute.weights import init_stage
from swarmflow.config_check import FUNCTION
from swarmflow.errors import ConfigError, ModelError
from swarmflow.files import readable_size
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.microbatch_format import format_of
from swarmflow.runtime.execution.served import Served

log = logging.getLogger("swarmflow")


def build(manifest: Manifest, budget: MemoryBudget, number: int) -> tuple[Served, MicrobatchMemory]:
    """Return a stage with zeros for weights, and the memory of its microbatches. Raises NoMemoryError."""
    *others, last = budget.layouts
    for in_host_memory in others:
        try:
            return _build(manifest, budget, number, in_host_memory=in_host_memory)
        except NoMemoryError as error:
            log.info("%s: another layout is tried", error)
    return _build(manifest, budget, number, in_host_memory=last)


def _build(
    manifest: Manifest, budget: MemoryBudget, number: int, *, in_host_memory: bool
) -> tuple[Served, MicrobatchMemory]:
    budget.check_layout(manifest, number, in_host_memory=in_host_memory)
    runners = _runners(manifest, budget.device, number, in_host_memory=in_host_memory)
    if budget.compiled:
        _compile(manifest, runners)
    optimizer = make_optimizer(OptimizerSettings.of(manifest))
    one = _microbatch_memory(manifest, budget, runners)
    budget.check_microbatches(manifest, number, one, in_host_memory=in_host_memory)
    for group in runners[0].stage.groups.values():
        group.allocate(optimizer.state_names())
    return Served(runners, optimizer, -1), one


def check_trusted(manifest: Manifest, trusted: Sequence[str]) -> None:
    """Import the function that makes the run's module, if it has one. Raises ConfigError, ModelError.

    trusted: functions that this peer's user lets it import; the code of a stranger is never run.
    """
    if not is_graph(manifest.model):
        return
    name = graph_model(manifest.model).module
    if not FUNCTION.fullmatch(name):
        raise ModelError("the run's manifest names its module in a way that is impossible")
    if name not in trusted:
        raise ConfigError(
            f"this run trains the module that {name} makes: the peer would run that code of your installed packages; "
            f"if you trust it, add --trust-module {name}"
        )
    load_function(name, "model.module")


def initialize(served: Served, manifest: Manifest) -> None:
    """Set the weights of version 0, which the run's seed gives."""
    stage = served.runner(1).stage
    if isinstance(stage, GraphStage):
        model = graph_model(manifest.model)
        stage.set_values(first_values(model.module, model.module_config, manifest.seed))
    else:
        init_stage(stage, manifest.seed)
    served.begin()


def _runners(manifest: Manifest, device: torch.device, number: int, *, in_host_memory: bool) -> tuple[StageRunner, ...]:
    """Return a runner for each step that may be computed at a time."""
    rounding = [
        rounding_of(manifest.accumulate, manifest.reduce_codec, manifest.microbatches)
        for _ in range(1 + manifest.delay)
    ]
    align = alignment(manifest.state_bits)
    stages: list[GroupedStage]
    if is_graph(manifest.model):
        model = graph_model(manifest.model)
        graph = recapture(model, manifest.seed, manifest.precision, dropout=manifest.dropout)
        stages = [
            GraphStage(
                graph,
                model,
                manifest.cut,
                number,
                device,
                each,
                align,
                in_host_memory=in_host_memory,
                drops=manifest.dropout,
            )
            for each in rounding
        ]
    else:
        stages = []
        for each in rounding:
            stage = build_stage(
                manifest.model,
                manifest.cut,
                number,
                device=device,
                dropout=manifest.dropout,
                rounding=each,
                align=align,
                boundary=manifest.boundary,
                in_host_memory=in_host_memory,
                base=stages[0].base if stages else None,
            )
            stages.append(stage)
    if stages[0].layout.beside != manifest.beside:
        beside = stages[0].layout.beside
        raise ModelError(f"the run's manifest has beside = {manifest.beside}, and its model {beside}: end the run")
    return tuple(StageRunner(stage, manifest.precision) for stage in stages)


def _compile(manifest: Manifest, runners: Sequence[StageRunner]) -> None:
    began_s = time.monotonic()
    log.info("compiling the blocks")
    reason = compile_blocks(runners, format_of(manifest).trial(runners[0].stage))
    if reason is None:
        log.info("the blocks are compiled, in %.0f s", time.monotonic() - began_s)
    else:
        log.warning("--compile: the blocks are not compiled, and computed as they are: %s", reason)


def _microbatch_memory(manifest: Manifest, budget: MemoryBudget, runners: Sequence[StageRunner]) -> MicrobatchMemory:
    """Return the memory of a stage's microbatches, and have its blocks recomputed where that is wanted, or needed.

    It is measured before the stage's memory is touched, which sets the peak.
    """
    stage, trial = runners[0].stage, format_of(manifest).trial(runners[0].stage)
    number, in_host = stage.layout.stage, stage.in_host_memory
    draw = DrawKey(manifest.seed, 0, 0) if stage.dropout else None
    graph_bytes = max(1, runners[0].activation_bytes(trial, draw))
    kept = MicrobatchMemory.kept(graph_bytes)
    if budget.activations == "keep":
        return kept
    if budget.activations == "auto" and budget.has_enough(manifest, number, kept, in_host_memory=in_host):
        return kept
    largest_bytes = largest_block_bytes(runners[0], trial, draw)
    for runner in runners:
        runner.stage.block_recompute.on = True
    inputs_bytes = max(1, runners[0].activation_bytes(trial, draw))
    if inputs_bytes >= graph_bytes:  # sums and views keep nothing, and what enters them is kept
        for runner in runners:
            runner.stage.block_recompute.on = False
        return kept
    log.info(
        "a microbatch keeps %s instead of %s: its blocks are computed again in the backward pass",
        *map(readable_size, (inputs_bytes, graph_bytes)),
    )
    return MicrobatchMemory.recomputed(inputs_bytes, largest_bytes)
