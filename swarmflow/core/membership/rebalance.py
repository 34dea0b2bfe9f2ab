"""Which peer should leave the least loaded stage for the most loaded one (SWARM, Algorithm 2), if that helps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarmflow.core.protocol.types import ProcessId

GAIN_MIN = 0.95  # the highest load must fall below this share of what it was: a move costs a download,
GAIN_OF_A_PEER = 0.5  # or by this share of what one more peer is worth there, which is less where there are many


@dataclass(frozen=True, slots=True)
class Server:
    """A peer of a stage."""

    process: ProcessId
    speed: float  # relative, above 0
    movable: bool  # it may be moved


@dataclass(frozen=True, slots=True)
class Move:
    """A peer, the stage that it should serve, and why."""

    process: ProcessId
    stage: int
    reason: str


def rebalance(costs: Sequence[float], stages: Sequence[Sequence[Server]]) -> Move | None:
    """The move that Algorithm 2 asks for, or None where there is nothing to gain.

    costs: relative computation of each stage; its load is the cost over the speed of those who serve it. Every stage
    must have somebody.

    The algorithm as printed moves whenever two loads differ, so that a peer may go to and fro for ever, and it can
    empty a stage. Here the highest load of the two stages has to fall, and the last peer of a stage never goes. Of the
    least loaded stage the slowest peer goes whose move lowers the higher load most. By how much it has to fall follows
    the size of the stage: one of 40 that lacks ten is to get them back, though each is worth 2.5% only.
    """
    loads = [cost / sum(server.speed for server in servers) for cost, servers in zip(costs, stages, strict=True)]
    busiest = max(range(len(loads)), key=lambda stage: (loads[stage], -stage))
    idlest = min(range(len(loads)), key=lambda stage: (loads[stage], stage))
    servers = stages[idlest]
    if busiest == idlest or len(servers) < 2:
        return None
    there, here = sum(server.speed for server in stages[busiest]), sum(server.speed for server in servers)
    best: Move | None = None
    mean = (there + here) / (len(stages[busiest]) + len(servers))
    lowest = max(GAIN_MIN, 1 / (1 + GAIN_OF_A_PEER * mean / there)) * loads[busiest]
    for server in sorted(servers, key=lambda server: (server.speed, server.process)):
        after = max(costs[busiest] / (there + server.speed), costs[idlest] / (here - server.speed))
        if server.movable and after < lowest:
            lowest = after
            reason = f"its load of {loads[busiest]:.3g} falls to {after:.3g}"
            best = Move(server.process, busiest, reason)
    return best
