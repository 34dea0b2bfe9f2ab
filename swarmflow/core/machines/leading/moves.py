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
    return _home(leader) or _placed(leader, now)


def move(leader: LeaderState, now: float) -> list[Action]:
    """Move the peers that are to be moved now."""
    home, actions = _home(leader), list[Action]()
    for each in home or _placed(leader, now):
        entry = leader.membership.known[each.process]
        entry.settled_s, entry.stands_in = now, False
        if not home:
            leader.membership.moved_s = now
            actions.append(Count("rebalances"))
        actions += grant(leader, entry, each.stage, each.reason)
    return actions


def _home(leader: LeaderState) -> list[Move]:
    reason = "it asked for it, and stage {} has another peer by now"
    found = placement.homeward(leader.membership, leader.version)
    return [Move(entry.process, entry.wish, reason.format(entry.member.stage)) for entry in found]


def _placed(leader: LeaderState, now: float) -> list[Move]:
    if leader.plans is not None and leader.plans.target:
        return planning.moves(leader, now)
    loads = placement.better_placed(leader.membership, leader.version, now)
    return [replace(each, reason=f"rebalanced, {each.reason}") for each in loads]
