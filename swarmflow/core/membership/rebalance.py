"""One move of a peer from the least loaded stage to the most loaded one, where that helps (SWARM, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarmflow.core.protocol.types import ProcessId

# A move costs the download of a stage, so the higher load of the two stages must fall to this share of it. In a large
# stage one peer cannot do that: 30 of 40 peers gain 3% with each that comes. There it must fall by half as much as an
# average peer would bring. The easier condition counts.
LOAD_RATIO_MAX = 0.95
SHARE_OF_AN_AVERAGE_PEER = 0.5


@dataclass(frozen=True, slots=True)
class StagePeer:
    """A peer of a stage."""

    process: ProcessId
    speed: float  # above 0; in any unit that is the same for all peers
    movable: bool  # False: its stage was chosen by its user, or it has been moved lately
    unfit: frozenset[int] = frozenset()  # stages for which its memory has no room


@dataclass(frozen=True, slots=True)
class Move:
    """A peer, the stage that it should serve from now on, and why."""

    process: ProcessId
    stage: int
    reason: str


def rebalance(costs: Sequence[float], stages: Sequence[Sequence[StagePeer]]) -> Move | None:
    """Return the best move by a changed Algorithm 2; None: no move is worth it.

    costs: the computation of a microbatch at each stage, in any unit; the load of a stage is its cost over the sum of
    its peers' speeds. Every stage must have a peer.

    The algorithm as printed moves a peer whenever two loads differ, so that it may go to and fro for ever, and can
    empty a stage. Here the higher load of the two stages has to fall by enough (LOAD_RATIO_MAX), and the last peer of a
    stage stays. The peer goes whose move leaves the lowest higher load; at a tie the slowest.
    """
    loads = [cost / sum(peer.speed for peer in peers) for cost, peers in zip(costs, stages, strict=True)]
    busiest = max(range(len(loads)), key=lambda stage: (loads[stage], -stage))
    idlest = min(range(len(loads)), key=lambda stage: (loads[stage], stage))
    if busiest == idlest or len(stages[idlest]) < 2:
        return None
    busiest_speed, idlest_speed = (sum(peer.speed for peer in stages[stage]) for stage in (busiest, idlest))
    mean_speed = (busiest_speed + idlest_speed) / (len(stages[busiest]) + len(stages[idlest]))
    with_a_share = busiest_speed / (busiest_speed + SHARE_OF_AN_AVERAGE_PEER * mean_speed)
    best_load, best = max(LOAD_RATIO_MAX, with_a_share) * loads[busiest], None
    leavers = sorted(stages[idlest], key=lambda peer: (peer.speed, peer.process))
    for peer in leavers:
        left = max(idlest_speed - peer.speed, leavers[0].speed)  # the difference is rounded, and may be 0
        after = max(costs[busiest] / (busiest_speed + peer.speed), costs[idlest] / left)
        if peer.movable and busiest not in peer.unfit and after < best_load:
            best_load = after
            best = Move(peer.process, busiest, f"its load of {loads[busiest]:.3g} falls to {after:.3g}")
    return best
