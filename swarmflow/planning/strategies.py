"""The strategies by which devices are arranged in pipelines, by name."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from swarmflow.planning import dtfm, places
from swarmflow.planning.arrangement import Arrangement, Group, Problem

Strategy = Callable[[Problem, Random], Arrangement]


def drawn(problem: Problem, random: Random) -> Arrangement:
    """Arrange the devices at random, as without a scheduler; pinned ones serve their stages."""
    return problem.arrangement(_filled(problem, random.sample(problem.free, len(problem.free))))


def by_rank(problem: Problem, random: Random) -> Arrangement:
    """Arrange the devices in their order, as Megatron-LM arranges ranks: the groups are outermost. random: not used.

    Devices that follow each other serve one stage (Narayanan et al., 2021, order tensor, data, pipeline).
    """
    return problem.arrangement(_filled(problem, problem.free))


def _filled(problem: Problem, devices: list[int]) -> tuple[Group, ...]:
    """Return the groups, filled with these devices in their order."""
    left, groups = list(devices), problem.pinned_groups()
    for group in groups:
        missing = problem.pipelines - len(group)
        group += left[:missing]
        del left[:missing]
    return tuple(tuple(sorted(group)) for group in groups)


STRATEGIES: dict[str, Strategy] = {"places": places.arrange, "dtfm": dtfm.arrange, "megatron": by_rank, "random": drawn}
