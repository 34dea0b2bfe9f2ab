"""The cut of a model for given machines: a dynamic program over its blocks and the machines that are left."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from swarmflow.errors import ConfigError

OPTIONS_MAX = 400  # choices of machines for a stage; of more machines several stand together
KINDS_MAX = 8  # of machines: with each the choices are twice as many at least
STAGES_MAX = 16  # no more are tried where fewer are possible: a token crosses every boundary
WORTH = 0.97  # of the time with fewer stages, at which more of them are chosen: they send more
NARROW_WORTH = 1.1  # of the least time, within which the stages are taken between which the least is sent

Counts = tuple[int, ...]  # of machines, by class
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MachineClass:
    """Machines that are alike."""

    name: str
    count: int
    speed: float  # relative to those of other classes


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Blocks `first` to `stop`, the machines that serve them, and the seconds between two microbatches there."""

    first: int
    stop: int
    machines: Counts
    seconds: float


@dataclass(frozen=True)
class CutProblem:
    """A model of like or unlike blocks, and machines.

    work(first, stop): seconds of a machine of speed 1 for a microbatch at a stage of these blocks, with the embedding
    and the head where they belong to it. fits(first, stop): for each class, whether its machines can hold that stage.
    name(block): what an error calls it. at_least: machines a stage, so that it outlives some of them.
    crossing: elements that a cut before each block has cross, where that differs.
    """

    blocks: int
    classes: tuple[MachineClass, ...]
    work: Callable[[int, int], float]
    fits: Callable[[int, int], Sequence[bool]]
    name: Callable[[int], str]
    at_least: int = 1
    crossing: Sequence[int] = ()

    @property
    def stages_max(self) -> int:
        """As many stages as there are blocks, and machines for each."""
        machines = sum(each.count for each in self.classes)
        return min(self.blocks, machines // self.at_least)

    @property
    def least_s(self) -> float:
        """No plan has less time between two microbatches: all machines compute all the time."""
        return self.work(0, self.blocks) / sum(each.count * each.speed for each in self.classes)

    @cached_property
    def units(self) -> Counts:
        """So many machines of each class are taken together: of hundreds not every number is tried."""
        counts = [min(each.count, OPTIONS_MAX) for each in self.classes]
        most = next(n for n in range(max(counts), 0, -1) if math.prod(min(n, c) + 1 for c in counts) <= OPTIONS_MAX)
        return tuple(-(-each.count // most) for each in self.classes)

    @cached_property
    def options(self) -> tuple[Counts, ...]:
        """The choices of machines for a stage, in units."""
        most = [each.count // unit for each, unit in zip(self.classes, self.units, strict=True)]
        choices = itertools.product(*(range(n + 1) for n in most))
        return tuple(choice for choice in choices if sum(self.machines(choice)) >= max(1, self.at_least))

    def machines(self, choice: Counts) -> Counts:
        """Return how many machines units are."""
        return tuple(taken * unit for taken, unit in zip(choice, self.units, strict=True))

    def stage(self, first: int, stop: int, machines: Counts) -> PlannedStage:
        """Return a stage; its seconds are infinite where one of the machines cannot hold it."""
        taken = zip(machines, self.classes, self.fits(first, stop), strict=True)
        speed = sum(count * (each.speed if fits else -math.inf) for count, each, fits in taken if count)
        return PlannedStage(first, stop, machines, self.work(first, stop) / speed if speed > 0 else math.inf)


def plan_cut_for(problem: CutProblem, stages: int | None = None) -> tuple[PlannedStage, ...]:
    """Return the stages between whose microbatches the least time passes, and who serves them.

    Where cuts differ in what crosses them: at most NARROW_WORTH times as much time, if less is sent then. stages: their
    number; None: the fewest with which no other number is faster by more than 3%. Raises ConfigError where the machines
    cannot hold the model, however it is cut.
    """
    if len(problem.classes) > KINDS_MAX:
        raise ConfigError(f"{len(problem.classes)} kinds of machines: name {KINDS_MAX} at most, similar ones together")
    if not 1 <= (stages or 1) <= problem.stages_max:
        raise ConfigError(
            f"{stages or 1} stages need as many blocks, or parts that a cut can separate, of which the model has "
            f"{problem.blocks}, and {problem.at_least} machines each: at most {problem.stages_max} are possible here"
        )
    if not problem.options:
        raise ConfigError(_too_small(problem, stages))
    program, best = _Program(problem), tuple[PlannedStage, ...]()
    for number in range(1, problem.stages_max + 1) if stages is None else [stages]:
        plan = program.best(number)
        if plan and (not best or bottleneck(plan) < WORTH * bottleneck(best)):
            best = plan
        if best and (number >= STAGES_MAX or bottleneck(best) * WORTH <= problem.least_s):
            break
    if not best:
        raise ConfigError(_too_small(problem, stages))
    return _narrowed(problem, best) if problem.crossing else best


def serve(problem: CutProblem, cut: Sequence[int]) -> tuple[PlannedStage, ...]:
    """Return the best that the machines can do with a given cut; empty: they cannot hold it."""
    edges = [0, *cut, problem.blocks]
    return _Program(problem, tuple(itertools.pairwise(edges))).best(len(edges) - 1)


def bottleneck(plan: Sequence[PlannedStage]) -> float:
    """Return the seconds between two microbatches of a plan: those of its slowest stage."""
    return max(stage.seconds for stage in plan)


def _narrowed(problem: CutProblem, plan: Sequence[PlannedStage]) -> tuple[PlannedStage, ...]:
    """Return the same machines' stages with edges moved, one after the other, to where less crosses them."""
    stages, limit, moved = list(plan), NARROW_WORTH * bottleneck(plan), True
    while moved:
        moved = False
        for number in range(1, len(stages)):
            before, after = stages[number - 1 : number + 1]
            for edge in range(before.first + 1, after.stop):
                shorter = problem.stage(before.first, edge, before.machines)
                longer = problem.stage(edge, after.stop, after.machines)
                narrower = problem.crossing[edge] < problem.crossing[stages[number].first]
                if narrower and max(shorter.seconds, longer.seconds) <= limit:
                    stages[number - 1 : number + 1] = shorter, longer
                    moved = True
    return tuple(stages)


def _too_small(problem: CutProblem, stages: int | None) -> str:
    """Say which block no machine can hold, or that together they are too few."""
    for block in range(problem.blocks):
        if not any(problem.fits(block, block + 1)):
            return f"no machine can hold {problem.name(block)} alone: it needs one with more memory"
    number = "that many" if stages is not None else "any number of"
    if (coarse := max(problem.units)) > 1:
        few = "name fewer kinds of machines, or fewer of each"
        return f"no cut into {number} stages was found, with machines taken {coarse} at a time: {few}"
    each = f", with {problem.at_least} for each," if problem.at_least > 1 else ""
    more = "add machines, or larger ones"
    return f"the machines cannot hold the model in {number} stages{each} however it is cut: {more}"


class _Program:
    """The dynamic program. After each stage: the least bottleneck for every number of blocks and of machines taken."""

    def __init__(self, problem: CutProblem, ranges: tuple[tuple[int, int], ...] | None = None) -> None:
        """ranges: the blocks of each stage; None: any."""
        self._problem, self._ranges = problem, ranges
        self._shape = tuple(
            max(choice[place] for choice in problem.options) + 1 for place in range(len(problem.classes))
        )
        self._steps: list[tuple[Times, npt.NDArray[np.int32]]] = []
        seconds = np.full((len(problem.options), problem.blocks + 1, problem.blocks + 1), math.inf)
        for first, stop in ranges or itertools.combinations(range(problem.blocks + 1), 2):
            stage = (problem.stage(first, stop, problem.machines(choice)) for choice in problem.options)
            seconds[:, first, stop] = [each.seconds for each in stage]
        self._seconds = seconds
        self._least = np.full((problem.blocks + 1, *self._shape), math.inf)
        self._least[(0,) * self._least.ndim] = 0.0

    def _step(self, before: Times, seconds: Times) -> tuple[Times, npt.NDArray[np.int32]]:
        """Add a stage. Return the least bottlenecks, and the option and the first block that give them, as a number."""
        blocks = self._problem.blocks
        stops = range(1, blocks + 1) if self._ranges is None else [self._ranges[len(self._steps)][1]]
        least = np.full_like(before, math.inf)
        chosen = np.full(before.shape, -1, dtype=np.int32)
        for number, choice in enumerate(self._problem.options):
            sizes = list(zip(choice, self._shape, strict=True))
            left = (slice(0, blocks), *(slice(0, size - taken) for taken, size in sizes))
            for stop in stops:
                times = seconds[number, :blocks, stop]
                if not np.isfinite(times).any():
                    continue
                through = np.maximum(before[left], times.reshape(blocks, *(1,) * len(sizes)))
                first = through.argmin(axis=0)
                found = np.take_along_axis(through, first[None], axis=0)[0]
                here: Any = (stop, *(slice(taken, size) for taken, size in sizes))
                better = found < least[here]
                least[here][better] = found[better]
                chosen[here][better] = number * (blocks + 1) + first[better]
        return least, chosen

    def best(self, stages: int) -> tuple[PlannedStage, ...]:
        """Return the best plan of so many stages; empty: there is none."""
        problem = self._problem
        while len(self._steps) < stages:
            self._least, chosen = self._step(self._least, self._seconds)
            self._steps.append((self._least, chosen))
        stop, last = problem.blocks, self._steps[stages - 1][0][problem.blocks]
        taken = np.unravel_index(int(last.argmin()), last.shape)
        if not math.isfinite(last[taken]):
            return ()
        found: list[PlannedStage] = []
        for _, chosen in reversed(self._steps[:stages]):
            number, first = divmod(int(chosen[(stop, *taken)]), problem.blocks + 1)
            choice = problem.options[number]
            found.append(problem.stage(first, stop, problem.machines(choice)))
            taken = tuple(total - each for total, each in zip(taken, choice, strict=True))
            stop = first
        return self._with_the_rest(found[::-1])

    def _with_the_rest(self, stages: list[PlannedStage]) -> tuple[PlannedStage, ...]:
        """Return the plan with the machines that are in no unit, or in none that is used, each at the slowest stage."""
        problem = self._problem
        for place, each in enumerate(problem.classes):
            for _ in range(each.count - sum(stage.machines[place] for stage in stages)):
                fitting = [n for n, stage in enumerate(stages) if problem.fits(stage.first, stage.stop)[place]]
                if not fitting:
                    break
                slowest = max(fitting, key=lambda number: stages[number].seconds)
                old = stages[slowest]
                more = tuple(count + (other == place) for other, count in enumerate(old.machines))
                stages[slowest] = problem.stage(old.first, old.stop, more)
        return tuple(stages)
