"""Announces the downstream cost to the stage before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.messages import DownstreamCost
from swarmflow.core.protocol.types import BEFORE_ALL, Epoch, ProcessId
from swarmflow.core.routing.prober import AT_ONCE_MAX

CHANGED = 0.1  # of the announced cost, before it is announced again


@dataclass(slots=True)
class Advertising:
    """The downstream cost of this peer as the stage before knows it."""

    dispatcher: Dispatcher
    before: Mapping[ProcessId, None] = field(default_factory=dict, init=False)  # its peers; none before stage 0
    epoch: Epoch = field(default=BEFORE_ALL, init=False)
    _announced_s: float = field(default=0.0, init=False)

    def open(self, epoch: Epoch, before: Mapping[ProcessId, None]) -> None:
        """Begin an epoch with these peers of the stage before."""
        self.epoch, self.before = epoch, before

    def changes(self) -> list[Action]:
        """Announce a changed cost, in time for the first microbatches of the stage before."""
        downstream_s = self.dispatcher.router.downstream_s
        if abs(downstream_s - self._announced_s) <= CHANGED * self._announced_s:
            return []
        self._announced_s = downstream_s
        return [Send(peer, DownstreamCost(self.epoch, downstream_s)) for peer in list(self.before)[:AT_ONCE_MAX]]
