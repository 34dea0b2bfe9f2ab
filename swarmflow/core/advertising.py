"""Announces the downstream cost to the stage before, and answers probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmflow.core.actions import Action, Release, Send
from swarmflow.core.dispatcher import Dispatcher
from swarmflow.core.messages import DownstreamCost, Probe, Probed
from swarmflow.core.prober import AT_ONCE_MAX
from swarmflow.core.types import BEFORE_ALL, Epoch, ProcessId, Ref

CHANGED = 0.1  # of the announced cost, before it is announced again


@dataclass(slots=True)
class Advertising:
    """before: the peers of the stage before this one; none before stage 0."""

    dispatcher: Dispatcher
    before: Mapping[ProcessId, None] = field(default_factory=dict)
    epoch: Epoch = BEFORE_ALL
    _told_s: float = 0.0

    def open(self, epoch: Epoch, before: Mapping[ProcessId, None]) -> None:
        """Begin an epoch with these peers of the stage before."""
        self.epoch, self.before = epoch, before

    def message(
        self, sender: ProcessId, message: Probe | Probed | DownstreamCost, bodies: tuple[Ref, ...], now: float
    ) -> list[Action]:
        """Handle a probe, an answer to one, or another peer's downstream cost."""
        match message:
            case Probe():
                answer = Send(sender, Probed(message.epoch, message.loaded, self.dispatcher.router.downstream_s))
                return [*([Release(bodies)] if bodies else []), answer]
            case Probed():
                self.dispatcher.probed(sender, message, now)
            case DownstreamCost():
                self.dispatcher.router.told(sender, message.downstream_s)
        return self._changed()

    def _changed(self) -> list[Action]:
        """Announce a changed cost, in time for the first microbatches of the stage before."""
        downstream_s = self.dispatcher.router.downstream_s
        if abs(downstream_s - self._told_s) <= CHANGED * self._told_s:
            return []
        self._told_s = downstream_s
        return [Send(peer, DownstreamCost(self.epoch, downstream_s)) for peer in list(self.before)[:AT_ONCE_MAX]]
