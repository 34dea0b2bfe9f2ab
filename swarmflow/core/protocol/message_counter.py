"""Detects that a link has lost messages although its connection never broke."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, get_args

from swarmflow.core.protocol.actions import Action, Forget, Send
from swarmflow.core.protocol.events import Received
from swarmflow.core.protocol.messages import Heartbeat, LeaderHeartbeat, Message
from swarmflow.core.protocol.messages.checks import REASON_MAX
from swarmflow.core.protocol.types import ProcessId

# The field in which a message of each type says why something is as it is.
REASON_FIELDS = {kind: name for kind in get_args(Message) for name in ("reason", "failed") if name in kind.__slots__}
REMEMBERED_MAX = 1 << 16  # processes of all that ever sent something; those silent for longest are forgotten


@dataclass(slots=True)
class _Counters:
    """A count for each process, for the REMEMBERED_MAX processes that were counted last.

    Two generations of a table: a count that is raised moves to the young one; when that is full it becomes the old one,
    and the counts of the former old one are forgotten. This needs no list ordered by time.
    """

    young: dict[ProcessId, int] = field(default_factory=dict)
    old: dict[ProcessId, int] = field(default_factory=dict)

    def raised(self, process: ProcessId) -> int:
        """Count one more; return the new count."""
        young = self.young
        count = young.get(process)
        if count is None:
            if len(young) >= REMEMBERED_MAX // 2:
                self.old, self.young = young, {}
                young = self.young
            count = self.old.pop(process, 0)
        young[process] = count + 1
        return count + 1

    def forget(self, process: ProcessId) -> None:
        """Start again at 1."""
        self.young.pop(process, None)
        self.old.pop(process, None)


@dataclass(slots=True)
class MessageCounter:
    """Counts the messages without bodies that this process and each other one send to each other.

    The control lane keeps the order of such messages, so a heartbeat that carries the sender's count shows the receiver
    whether an earlier message was lost. Messages with bodies may still be in flight then; they have deadlines of their
    own.
    """

    me: ProcessId
    _sent: _Counters = field(default_factory=_Counters)
    _received: _Counters = field(default_factory=_Counters)

    def received(self, event: Received) -> bool:
        """Count a message that arrived. Return False for a heartbeat whose sender has sent more than has arrived."""
        if event.bodies or event.sender == self.me:
            return True
        count = self._received.raised(event.sender)
        message = event.message
        return not isinstance(message, LeaderHeartbeat | Heartbeat) or message.sent <= count

    def lost(self, process: ProcessId) -> None:
        """Count from 0 again: this process knows that the connection broke, so the other end must not miss anything."""
        self._sent.forget(process)

    def sent(self, actions: list[Action]) -> list[Action]:
        """Count the messages in a list of actions, and write the count into each heartbeat, in place."""
        for place, action in enumerate(actions):
            if type(action) is Send:
                if not action.bodies and action.to != self.me:
                    self._count(actions, place, action)
            elif type(action) is Forget:
                self.lost(action.process)
                self._received.forget(action.process)
        return actions

    def _count(self, actions: list[Action], place: int, send: Send) -> None:
        count, message = self._sent.raised(send.to), send.message
        if type(message) is LeaderHeartbeat or type(message) is Heartbeat:
            actions[place] = Send(send.to, replace(message, sent=count))
        elif (name := REASON_FIELDS.get(type(message))) is not None:
            actions[place] = _short(send, name)


def _short(send: Send, name: str) -> Send:
    """Return the same message with its reason cut to REASON_MAX, since its receiver refuses a longer one."""
    message: Any = send.message
    reason = getattr(message, name)
    if len(reason) <= REASON_MAX:
        return send
    return Send(send.to, replace(message, **{name: reason[:REASON_MAX]}), send.bodies)
