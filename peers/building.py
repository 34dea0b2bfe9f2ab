"""Builds the stage that a peer was granted, without its weights, and measures what a microbatch takes of memory."""

from __future__ import annotations

import torch

from peers.fitting import MemoryBudget
from swarmflow.compute.blocks import alignment
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.flat import rounding_of
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.served import Served


def build(manifest: Manifest, budget: MemoryBudget, number: int) -> tuple[Served, int]:
    """Return a stage with zeros for weights, and the bytes of a held microbatch. Raises NoMemoryError."""
    budget.check_stage(manifest, number)
    runners = tuple(_runner(manifest, budget.device, number) for _ in range(1 + manifest.delay))
    optimizer = make_optimizer(OptimizerSettings.of(manifest))
    one_bytes = _microbatch_bytes(manifest, budget.device, runners[0])
    budget.check_microbatches(manifest, number, one_bytes)
    for group in runners[0].stage.groups.values():
        group.allocate(optimizer.state_names())
    return Served(runners, optimizer, -1), one_bytes


def _runner(manifest: Manifest, device: torch.device, number: int) -> StageRunner:
    rounding = rounding_of(manifest.accumulate, manifest.reduce_codec, manifest.microbatches)
    stage = build_stage(
        manifest.model,
        manifest.cut,
        number,
        device=device,
        dropout=manifest.dropout,
        rounding=rounding,
        align=alignment(manifest.state_bits),
        boundary=manifest.boundary,
    )
    return StageRunner(stage, manifest.precision)


def _microbatch_bytes(manifest: Manifest, device: torch.device, runner: StageRunner) -> int:
    """Return the bytes of a held microbatch, measured before the stage's memory is touched, which sets the peak."""
    stage = runner.stage
    rows = (manifest.microbatch_sequences, manifest.seq_len)
    x = torch.zeros(rows, dtype=torch.int64) if stage.first else torch.zeros((*rows, stage.boundary_width))
    draw = DrawKey(manifest.seed, 0, 0) if stage.dropout else None
    return max(1, runner.activation_bytes(x.to(device), draw))
