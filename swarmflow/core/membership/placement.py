"""Which stage a peer serves: the first one of a newcomer, and moves between the stages."""

from __future__ import annotations

from collections.abc import Iterable

from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord, Membership
from swarmflow.core.membership.rebalance import Move, StagePeer, rebalance

MOVING_PEERS = 20  # of so many one may move in a period


def place(membership: Membership, wish: int) -> tuple[int, str]:
    """Return the stage for a newcomer, and why: its wish, else an empty stage, else the highest load per capacity.

    The load of a stage is its share of the computation (each serves the same microbatches), its capacity the sum
    of its peers' speeds, those still loading included, so that peers that start together spread.
    """
    if wish >= 0:
        return wish, "as asked for"
    stages = membership.plan.stages
    costs = membership.plan.costs or (1.0,) * stages
    loads: list[tuple[float, int]] = []
    for stage in range(stages):
        speed = membership.speed(stage)
        if speed == 0:
            return stage, "nobody serves it"
        loads.append((costs[stage] / speed, -stage))
    highest = max(loads)
    return -highest[1], f"highest load per capacity ({highest[0]:.3g})"


def homeward(membership: Membership, version: int) -> list[MemberRecord]:
    """Return the peers that may go back to the stage they asked for: others serve the one where they stand in."""
    here = [e for e in membership.peers() if e.stands_in and e.holds(version)]
    found: list[MemberRecord] = []
    for entry in here:
        left = [e for e in membership.ready(entry.member.stage, version) if e not in found]
        if not entry.draining and len(left) > 1:
            found.append(entry)
    return found


def better_placed(membership: Membership, version: int, now: float) -> Move | None:
    """Return the move to be made now, if every stage is served and there are peers that have stayed long enough.

    A loading peer counts for the stage that it was granted: where peers come all the time there is no moment at which
    none is loading. The last ready peer of a stage stays. Of MOVING_PEERS peers one may move in a period, and of fewer
    one too, so that many peers are levelled as fast as few.
    """
    stages = range(membership.plan.stages)
    if not all(membership.served(stage, version) for stage in stages):
        return None
    pace = min(1.0, MOVING_PEERS / (membership.ready_peers() + len(membership.loading())))
    servers: list[list[StagePeer]] = []
    for stage in stages:
        ready = {e.process for e in membership.ready(stage, version)}
        row: list[StagePeer] = []
        for e in membership.peers(stage):
            if e.phase in (MemberPhase.READY, MemberPhase.LOADING) and not e.draining:
                rested = 0 < e.rebalance_s <= now - e.settled_s and pace * e.rebalance_s <= now - membership.moved_s
                row.append(StagePeer(e.process, e.speed, rested and e.process in ready and len(ready) > 1))
        servers.append(row)
    return rebalance(membership.plan.costs or (1.0,) * membership.plan.stages, servers)


def spare(membership: Membership, empty: Iterable[int]) -> MemberRecord | None:
    """Return a peer that can leave its stage for an empty one: from the largest stage of two or more."""
    lost = set(empty)
    best: MemberRecord | None = None
    best_size = 1
    for stage in range(membership.plan.stages):
        movable = [e for e in membership.peers(stage) if e.movable and not e.draining]
        size = len([e for e in membership.peers(stage) if not e.draining])
        if stage not in lost and movable and size > best_size:
            best, best_size = movable[-1], size
    return best


def lacking(membership: Membership, empty: list[int]) -> str:
    """Return what stages without a ready peer wait for, as a person reads it."""
    deserted = [stage for stage in empty if not membership.peers(stage)]
    text = ", ".join(str(stage) for stage in deserted or empty)
    return f"a peer for stage {text}" if deserted else f"the peers of stage {text}, which are loading"
