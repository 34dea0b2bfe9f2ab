"""The leader's books, and the groups of the all-reduce, as they are told to those in them: who takes part."""

from __future__ import annotations

from swarmflow.core.protocol.events import Event, Received
from swarmflow.core.protocol.messages import MemberEntered, Message, OpenStep, Prepare, RosterDelta

BOOKS: frozenset[type[Message]] = frozenset((OpenStep, RosterDelta, MemberEntered, Prepare))


def of_books(event: Event) -> bool:
    """Whether a process is told who takes part."""
    return type(event) is Received and type(event.message) in BOOKS
