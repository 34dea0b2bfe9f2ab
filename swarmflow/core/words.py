"""Notices that a link has lost messages although it never broke."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from swarmflow.core.actions import Action, Forget, Send
from swarmflow.core.events import Received
from swarmflow.core.messages import (
    CopiesHeld,
    Evicted,
    Heartbeat,
    LeaderHeartbeat,
    LoadFailed,
    MemberFailed,
    Postponed,
    Refused,
    Suspect,
    Unprepared,
    Unrepairable,
)
from swarmflow.core.messages.checks import REASON_MAX
from swarmflow.core.types import ProcessId

WITH_REASON = frozenset(
    (Evicted, MemberFailed, CopiesHeld, LoadFailed, Postponed, Refused, Suspect, Unprepared, Unrepairable)
)
REMEMBERED_MAX = 1 << 16  # processes, of all that ever spoke: those that were silent for long are forgotten


@dataclass(slots=True)
class _Counters:
    """A number for each process. Those that were raised since the younger table was begun are in it, others in the old.

    When the younger one is full it takes the place of the old one, whose processes are forgotten. So a count is raised
    in one place, without a list of who was silent for how long.
    """

    young: dict[ProcessId, int] = field(default_factory=dict)
    old: dict[ProcessId, int] = field(default_factory=dict)

    def raised(self, process: ProcessId) -> int:
        """One more."""
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
        """The next one is the first."""
        self.young.pop(process, None)
        self.old.pop(process, None)


@dataclass(slots=True)
class MessageCounter:
    """Counts the messages without bodies between this life of the process and each other one's.

    Such messages keep their order (the control lane). So a heartbeat that says how many there were tells whether one
    before it was lost; those with bodies, which may still be on their way, have deadlines of their own.
    """

    me: ProcessId
    _said: _Counters = field(default_factory=_Counters)
    _heard: _Counters = field(default_factory=_Counters)

    def heard(self, event: Received) -> bool:
        """Count a message. False: it is a heartbeat, and not all that was said before it has come."""
        if event.bodies or event.sender == self.me:
            return True
        count = self._heard.raised(event.sender)
        message = event.message
        return not isinstance(message, LeaderHeartbeat | Heartbeat) or message.said <= count

    def heartbeat(self, leader: ProcessId, beat: Heartbeat) -> Send:
        """A peer's sign of life, with the number."""
        return Send(leader, _numbered(beat, self._said.raised(leader)))

    def lost(self, process: ProcessId) -> None:
        """What did not reach a process is known here by now: it is not to be missed there as well."""
        self._said.forget(process)

    def say(self, actions: list[Action]) -> list[Action]:
        """Count what is sent, and tell each heartbeat the number: in this list."""
        for place, action in enumerate(actions):
            if type(action) is Send:
                if not action.bodies and action.to != self.me:
                    self._say(actions, place, action)
            elif type(action) is Forget:
                self.lost(action.process)
                self._heard.forget(action.process)
        return actions

    def _say(self, actions: list[Action], place: int, send: Send) -> None:
        count, message = self._said.raised(send.to), send.message
        if type(message) is LeaderHeartbeat:
            actions[place] = Send(send.to, LeaderHeartbeat(message.term, message.epoch, count))
        elif type(message) is Heartbeat:
            actions[place] = Send(send.to, _numbered(message, count))
        elif type(message) in WITH_REASON:
            actions[place] = _short(send)


def _short(send: Send) -> Send:
    """The same message; a long reason, which its receiver would refuse, is cut."""
    message: Any = send.message
    name = "failed" if isinstance(message, CopiesHeld) else "reason"
    reason = getattr(message, name)
    if len(reason) <= REASON_MAX:
        return send
    return Send(send.to, replace(message, **{name: reason[:REASON_MAX]}), send.bodies)


def _numbered(beat: Heartbeat, count: int) -> Heartbeat:
    return Heartbeat(beat.queued, beat.held, beat.version, count, beat.done, beat.awaits)
