"""Notices that a link has lost messages although it never broke."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.actions import Action, Forget, Send
from swarmflow.core.events import Received
from swarmflow.core.messages import Beat, Heartbeat
from swarmflow.core.types import ProcessId

REMEMBERED_MAX = 1 << 16  # processes, of all that ever spoke: those that were silent longest are forgotten


@dataclass(slots=True)
class Words:
    """Counts the messages without bodies between this life of the process and each other one's.

    Such messages keep their order (the control lane). So a heartbeat that says how many there were tells whether one
    before it was lost; those with bodies, which may still be on their way, have deadlines of their own.
    """

    me: ProcessId
    _said: dict[ProcessId, int] = field(default_factory=dict)
    _heard: dict[ProcessId, int] = field(default_factory=dict)

    def heard(self, event: Received) -> bool:
        """Count a message. False: it is a heartbeat, and not all that was said before it has come."""
        if event.bodies or event.sender == self.me:
            return True
        count = _raise(self._heard, event.sender)
        message = event.message
        return not isinstance(message, Beat | Heartbeat) or message.said <= count

    def lost(self, process: ProcessId) -> None:
        """What did not reach a process is known here by now: it is not to be missed there as well."""
        self._said.pop(process, None)

    def say(self, actions: list[Action]) -> list[Action]:
        """Count what is sent, and tell each heartbeat the number."""
        return [self._counted(action) for action in actions] if actions else actions

    def _counted(self, action: Action) -> Action:
        if isinstance(action, Forget):
            self.lost(action.process)
            self._heard.pop(action.process, None)
        if not isinstance(action, Send) or action.bodies or action.to == self.me:
            return action
        count, message = _raise(self._said, action.to), action.message
        if isinstance(message, Beat):
            return Send(action.to, Beat(message.term, message.epoch, count))
        if isinstance(message, Heartbeat):
            return Send(action.to, Heartbeat(message.queued, message.held, message.version, count))
        return action


def _raise(counts: dict[ProcessId, int], process: ProcessId) -> int:
    """Raise a count; the last one raised is the last one of the dict."""
    count = counts[process] = counts.pop(process, 0) + 1
    if len(counts) > REMEMBERED_MAX:
        del counts[next(iter(counts))]
    return count
