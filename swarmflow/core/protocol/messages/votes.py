"""The vote of a sender, by its certificate."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.protocol.messages import ElectionReport, Join, Message
from swarmflow.core.protocol.types import Role


def with_vote(message: Message, role: Role | None) -> Message:
    """Return a Join or an ElectionReport whose sender has a vote exactly if it has a certificate; others unchanged.

    role: by its certificate; None: it has none.
    """
    votes = role is not None
    if isinstance(message, Join):
        return replace(message, member=replace(message.member, votes=votes))
    if isinstance(message, ElectionReport):
        join, member = with_vote(message.join, role), replace(message.member, votes=votes)
        assert isinstance(join, Join)
        return replace(message, join=join, member=member)
    return message
