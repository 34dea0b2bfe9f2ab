"""What a peer tells those before it of the way beyond it, and of the ways that are probed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmflow.core.actions import Action, Release, Send
from swarmflow.core.messages import DownstreamCost, Probe, Probed
from swarmflow.core.outbox import Dispatcher
from swarmflow.core.prober import AT_ONCE_MAX
from swarmflow.core.types import BEFORE_ALL, Epoch, ProcessId, Ref

CHANGED = 0.1  # of what those before were told, before they are told again


@dataclass(slots=True)
class Advertising:
    """before: who serves the stage before this one, and hears of changes; nobody before the first stage."""

    dispatcher: Dispatcher
    before: Mapping[ProcessId, None] = field(default_factory=dict)
    epoch: Epoch = BEFORE_ALL
    _told_s: float = 0.0

    def open(self, epoch: Epoch, before: Mapping[ProcessId, None]) -> None:
        """A new epoch, with these before."""
        self.epoch, self.before = epoch, before

    def message(
        self, sender: ProcessId, message: Probe | Probed | DownstreamCost, bodies: tuple[Ref, ...], now: float
    ) -> list[Action]:
        """Somebody probes the way here, has answered a probe, or has told of the way beyond it."""
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
        """Tell those before when the way beyond has come to be known better, in time for their first microbatches."""
        downstream_s = self.dispatcher.router.downstream_s
        if abs(downstream_s - self._told_s) <= CHANGED * self._told_s:
            return []
        self._told_s = downstream_s
        return [Send(peer, DownstreamCost(self.epoch, downstream_s)) for peer in list(self.before)[:AT_ONCE_MAX]]
