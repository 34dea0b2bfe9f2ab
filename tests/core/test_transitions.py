"""Transition tables: legal moves, illegal ones, and tables with a gap."""

from __future__ import annotations

from enum import StrEnum

import pytest

from swarmflow.core.transitions import IllegalTransition, Transitions


class Door(StrEnum):
    OPEN = "open"
    SHUT = "shut"
    LOCKED = "locked"


DOOR = Transitions(
    "door",
    Door.OPEN,
    {
        Door.OPEN: {Door.SHUT: "pushed"},
        Door.SHUT: {Door.OPEN: "pulled", Door.LOCKED: "the key is turned"},
        Door.LOCKED: {},
    },
)


def test_legal_move() -> None:
    assert DOOR.move(Door.SHUT, Door.LOCKED) is Door.LOCKED


def test_illegal_move_names_what_may_follow() -> None:
    with pytest.raises(IllegalTransition, match="door: locked cannot follow open, only shut"):
        DOOR.move(Door.OPEN, Door.LOCKED)
    with pytest.raises(IllegalTransition, match="open cannot follow locked, only nothing: it is final"):
        DOOR.move(Door.LOCKED, Door.OPEN)


def test_every_state_needs_a_row() -> None:
    with pytest.raises(ValueError, match="no row for locked, shut"):
        Transitions("door", Door.OPEN, {Door.OPEN: {}})


def test_every_state_can_be_reached() -> None:
    with pytest.raises(ValueError, match="locked cannot be reached from open"):
        Transitions("door", Door.OPEN, {Door.OPEN: {Door.SHUT: "pushed"}, Door.SHUT: {}, Door.LOCKED: {}})
