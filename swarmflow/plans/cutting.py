"""The cut of a run's model for the machines that a user names: what `swarmflow plan --cut` finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from swarmflow.config import RunConfig
from swarmflow.core.protocol.messages.checks import MEMBERS_MAX
from swarmflow.errors import ConfigError
from swarmflow.planning.cut import STAGES_MAX, CutProblem, MachineClass, PlannedStage, bottleneck, plan_cut_for, serve
from swarmflow.plans.pieces import DecoderBlocks, ModuleOperators, Pieces
from swarmflow.preparation.graph_check import FirstBatch
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
    """The cut of a model for given machines, and what the best even cut would be; empty: none fits them.

    Stages are of pieces, all else is in what RUN.toml counts. memory_bytes: with one microbatch.
    """

    pieces: Pieces
    machines: tuple[MachineKind, ...]
    problem: CutProblem
    stages: tuple[PlannedStage, ...]
    even: tuple[PlannedStage, ...]
    parameters: tuple[int, ...]
    memory_bytes: tuple[int, ...]

    @property
    def cut(self) -> tuple[int, ...]:
        """Where the stages 1, 2, ... begin, as RUN.toml has it."""
        return self._cut_of(self.stages)

    @property
    def even_cut(self) -> tuple[int, ...]:
        """The same of the best even cut."""
        return self._cut_of(self.even)

    @property
    def gain(self) -> float | None:
        """How many times as fast as the best even cut it is."""
        return bottleneck(self.even) / bottleneck(self.stages) if self.even else None

    def _cut_of(self, stages: Sequence[PlannedStage]) -> tuple[int, ...]:
        return tuple(self.pieces.edges[stage.first] for stage in stages[1:])


def parse_machines(text: str) -> MachineKind:
    """Return machines: `2x24GB@3` are two of 24 GB, each three times as fast as one without `@`. Raises ConfigError."""
    found = _MACHINES.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{OPTION} {text}: write COUNTxMEMORY, or COUNTxMEMORY@SPEED, such as 2x24GB@3")
    count, speed = int(found[1]), float(found[3] or 1)
    if not 1 <= count <= MEMBERS_MAX or speed <= 0:
        raise ConfigError(f"{OPTION} {text}: the count must be from 1 to {MEMBERS_MAX:,}, and the speed above 0")
    return MachineKind(text.strip(), count, parse_size(f"{OPTION} {text}:", found[2]), speed)


def find_cut(
    config: RunConfig,
    machines: Sequence[MachineKind],
    stages: int | None,
    at_least: int,
    first_batch: Callable[[RunConfig], FirstBatch],
) -> FoundCut:
    """Cut the model of a run for the machines.

    stages: their number; None: as many as are worth it. at_least: machines a stage. first_batch: reads that of a run of
    a module. Raises SwarmflowError: the model, its data or RUN.toml is wrong, or the machines cannot hold the model.
    """
    pieces: Pieces
    if config.model.module is None:
        pieces = DecoderBlocks.of(config)
    else:
        pieces = ModuleOperators.of(config, first_batch(config))
    problem = _problem(pieces, machines, at_least)
    found = plan_cut_for(problem, stages)
    parameters = pieces.parameters(tuple(pieces.edges[stage.first] for stage in found[1:]))
    memory = tuple(pieces.memory_bytes(stage.first, stage.stop) for stage in found)
    even = _best_even(problem, pieces, len(found))
    return FoundCut(pieces, tuple(machines), problem, found, even, parameters, memory)


def _problem(pieces: Pieces, machines: Sequence[MachineKind], at_least: int) -> CutProblem:
    @cache
    def fits(first: int, stop: int) -> tuple[bool, ...]:
        needed_bytes = pieces.memory_bytes(first, stop)
        return tuple(each.memory_bytes >= needed_bytes for each in machines)

    classes = tuple(MachineClass(each.text, each.count, each.speed) for each in machines)
    return CutProblem(len(pieces.edges) - 1, classes, pieces.work_s, fits, pieces.name, at_least, pieces.crossing())


def _best_even(problem: CutProblem, pieces: Pieces, stages: int) -> tuple[PlannedStage, ...]:
    """Return what the machines can do with the best of the cuts that RUN.toml's `stages` gives; empty: none fits.

    stages: how many the planned cut has.
    """
    most = min(problem.stages_max, max(STAGES_MAX, stages))
    cuts = [cut for number in range(1, most + 1) if (cut := pieces.even_cut(number)) is not None]
    plans = [plan for cut in cuts if (plan := serve(problem, cut))]
    return min(plans, key=bottleneck, default=())
