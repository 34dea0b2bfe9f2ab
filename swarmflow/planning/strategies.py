"""The strategies by which devices are arranged in pipelines, by name."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from swarmflow.planning import dtfm, op_fence, places
from swarmflow.planning.arrangement import Arrangement, Problem

Strategy = Callable[[Problem, Random], Arrangement]


def drawn(problem: Problem, random: Random) -> Arrangement:
    """Arrange the devices at random, as without a scheduler; pinned ones serve their stages."""
    return problem.arrangement(problem.filled(random.sample(problem.free, len(problem.free))))


def by_rank(problem: Problem, random: Random) -> Arrangement:
    """Arrange the devices in their order, as Megatron-LM arranges ranks: the groups are outermost. random: not used.

    Devices that follow each other serve one stage (Narayanan et al., 2021, order tensor, data, pipeline).
    """
    return problem.arrangement(problem.filled(problem.free))


STRATEGIES: dict[str, Strategy] = {
    "places": places.arrange,
    "dtfm": dtfm.arrange,
    "op-fence": op_fence.arrange,
    "megatron": by_rank,
    "random": drawn,
}
