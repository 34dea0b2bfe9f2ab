"""What a leader remembers that places peers by a plan of their links: the links, the plan under way, the last one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.link_map import LinkMap


@dataclass(slots=True)
class StagePlans:
    """The plans of one leader."""

    links: LinkMap = field(default_factory=LinkMap)
    target: dict[ProcessId, int] = field(default_factory=dict)  # stages of the plan in force; empty: there is none
    number: int = 0  # of the last plan that was asked for
    asked: tuple[ProcessId, ...] = ()  # the peers of the plan under way; empty: there is none
    peers: frozenset[ProcessId] = frozenset()  # of the last plan that was asked for
    asked_s: float = -math.inf  # when the last one was asked for
    due: bool = False  # something has changed since
    surveying: dict[ProcessId, float] = field(default_factory=dict)  # who measures its links, and until when at most

    def begin(self, peers: Iterable[ProcessId], now: float) -> int:
        """Begin a plan, and return its number."""
        self.number, self.asked, self.asked_s, self.due = self.number + 1, tuple(peers), now, False
        self.peers = frozenset(self.asked)
        return self.number

    def take(self, number: int) -> tuple[ProcessId, ...]:
        """End the plan under way, and return its peers; none: the answer is to an earlier one."""
        if number != self.number:
            return ()
        peers, self.asked = self.asked, ()
        return peers
