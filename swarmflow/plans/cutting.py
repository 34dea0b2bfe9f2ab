"""The cut of a run's model for the machines that a user names: what `swarmflow plan --cut` finds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from swarmflow.compute.demands import blocks_bytes
from swarmflow.compute.partition import BlockCosts, block_count, plan_cut
from swarmflow.config import RunConfig, load
from swarmflow.core.protocol.messages.checks import MEMBERS_MAX
from swarmflow.errors import ConfigError, raise_all
from swarmflow.manifest import Manifest
from swarmflow.planning.cut import STAGES_MAX, CutProblem, MachineClass, PlannedStage, bottleneck, plan_cut_for, serve
from swarmflow.preparation.manifests import manifest_of
from swarmflow.preparation.model_check import CheckedModel, check_model
from swarmflow.quantities import parse_size

_MACHINES = re.compile(r"(\d{1,15})x([^@]+)(?:@(\d{1,15}(?:\.\d+)?))?")
OPTION = "--machines"


@dataclass(frozen=True)
class MachineKind:
    """MachineKind as a user names them: so many of this memory, and how fast one is beside others."""

    text: str
    count: int
    memory_bytes: int
    speed: float


@dataclass(frozen=True)
class FoundCut:
    """The cut of a model for given machines, and what the best even cut would be; empty: none fits them."""

    run: Manifest
    machines: tuple[MachineKind, ...]
    problem: CutProblem
    stages: tuple[PlannedStage, ...]
    even: tuple[PlannedStage, ...]
    memory_bytes: tuple[int, ...]  # of each stage, as `blocks_bytes` counts it

    @property
    def cut(self) -> tuple[int, ...]:
        """The first block of stages 1, 2, ..., as RUN.toml has it."""
        return tuple(stage.first for stage in self.stages[1:])

    @property
    def gain(self) -> float | None:
        """How many times as fast as the best even cut it is."""
        return bottleneck(self.even) / bottleneck(self.stages) if self.even else None


def parse_machines(text: str) -> MachineKind:
    """Return machines: `2x24GB@3` are two of 24 GB, each three times as fast as one without `@`. Raises ConfigError."""
    found = _MACHINES.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{OPTION} {text}: write COUNTxMEMORY, or COUNTxMEMORY@SPEED, such as 2x24GB@3")
    count, speed = int(found[1]), float(found[3] or 1)
    if not 1 <= count <= MEMBERS_MAX or speed <= 0:
        raise ConfigError(f"{OPTION} {text}: the count must be from 1 to {MEMBERS_MAX:,}, and the speed above 0")
    return MachineKind(text.strip(), count, parse_size(f"{OPTION} {text}:", found[2]), speed)


def find_cut(run_toml: Path, machines: Sequence[MachineKind], stages: int | None, at_least: int) -> FoundCut:
    """Cut the model of RUN.toml for the machines.

    stages: their number; None: as many as are worth it. at_least: machines a stage. Raises SwarmflowError: the model or
    RUN.toml is wrong, or the machines cannot hold the model.
    """
    config = load(run_toml)
    if config.model.module is not None:
        raise ConfigError(
            f"model.module = {config.model.module!r}: only the blocks of a decoder are cut for given machines; "
            "swarmflow check shows how a module is cut for like ones"
        )
    checked = check_model(config, measure=True)
    raise_all(checked.problems)
    model = checked.model
    assert model is not None, "a model that cannot be used has a problem"
    run = manifest_of(config, model, corpus_digest="", run_id="")
    problem = _problem(run, model, machines, at_least)
    found = plan_cut_for(problem, stages)
    _check_found(config, model, tuple(stage.first for stage in found[1:]))
    memory = tuple(_bytes(run, model, stage.first, stage.stop) for stage in found)
    return FoundCut(run, tuple(machines), problem, found, _best_even(problem, run, model, len(found)), memory)


def _check_found(config: RunConfig, model: CheckedModel, cut: tuple[int, ...]) -> None:
    """Raises SwarmflowError for a cut that a trainer would refuse."""
    if config.model.boundary is not None and not cut:
        raise ConfigError(
            f"model.boundary = {config.model.boundary!r}: for these machines one stage is best, which has no boundary; "
            "leave model.boundary out, or give --stages"
        )
    planned = replace(config, model=replace(config.model, cut=cut, stages=len(cut) + 1))
    manifest_of(planned, replace(model, examined=replace(model.examined, costs=None)), corpus_digest="", run_id="")


def _problem(run: Manifest, model: CheckedModel, machines: Sequence[MachineKind], at_least: int) -> CutProblem:
    costs, blocks = _costs(model), block_count(run.model)

    def work(first: int, stop: int) -> float:
        ends = (first == 0) * costs.embedding_s + (stop == blocks) * costs.head_s
        return ends + (stop - first) * costs.block_s

    @cache
    def fits(first: int, stop: int) -> tuple[bool, ...]:
        needed_bytes = _bytes(run, model, first, stop)
        return tuple(each.memory_bytes >= needed_bytes for each in machines)

    classes = tuple(MachineClass(each.text, each.count, each.speed) for each in machines)
    return CutProblem(blocks, classes, work, fits, at_least)


def _best_even(problem: CutProblem, run: Manifest, model: CheckedModel, stages: int) -> tuple[PlannedStage, ...]:
    """Return what the machines can do with the best of the cuts that RUN.toml's `stages` gives; empty: none fits.

    stages: how many the planned cut has.
    """
    most = min(problem.stages_max, max(STAGES_MAX, stages))
    cuts = (plan_cut(run.model, number, _costs(model)) for number in range(1, most + 1))
    plans = [plan for cut in cuts if (plan := serve(problem, cut))]
    return min(plans, key=bottleneck, default=())


def _bytes(run: Manifest, model: CheckedModel, first: int, stop: int) -> int:
    return blocks_bytes(run, model.examined.activations, first, stop, block_count(run.model))


def _costs(model: CheckedModel) -> BlockCosts:
    assert model.examined.costs is not None, "they were measured"
    return model.examined.costs
