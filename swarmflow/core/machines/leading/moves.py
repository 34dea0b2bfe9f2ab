"""Moves of peers between two steps: home, to the stages that are planned for them, or where they are needed more."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.machines.leading import planning
from swarmflow.core.machines.leading.grants import grant
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership import placement
from swarmflow.core.membership.rebalance import Move
from swarmflow.core.protocol.actions import Action, Count


def due(leader: LeaderState, now: float) -> list[Move]:
    """Return the moves to be made now: of those that stood in, else by the plan in force, else by loads."""
    if home := _home(leader):
        return home
    if leader.plans is not None and leader.plans.target:
        return planning.moves(leader, now)
    loads = placement.better_placed(leader.membership, leader.version, now)
    return [replace(move, reason=f"rebalanced, {move.reason}") for move in loads]


def move(leader: LeaderState, now: float) -> list[Action]:
    """Move the peers that are to be moved now."""
    home, actions = bool(_home(leader)), list[Action]()
    for each in due(leader, now):
        entry = leader.membership.known[each.process]
        entry.settled_s, entry.stands_in = now, False
        if not home:
            leader.membership.moved_s = now
            actions.append(Count("rebalances"))
        actions += grant(leader, entry, each.stage, each.reason)
    return actions


def _home(leader: LeaderState) -> list[Move]:
    found = placement.homeward(leader.membership, leader.version)
    return [
        Move(e.process, e.wish, f"it asked for it, and stage {e.member.stage} has another peer by now") for e in found
    ]
