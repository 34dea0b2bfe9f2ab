"""What a leader remembers that places peers by a plan of their links: the links, the plan under way, the last one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.link_map import LinkMap

CHANGED_SHARE = 0.05  # of the links have to have changed before a plan is due
PAUSE = 10.0  # times what the last plan took, before the next one that no newcomer waits for


@dataclass(slots=True)
class StagePlans:
    """The plans of one leader."""

    links: LinkMap = field(default_factory=LinkMap)
    target: dict[ProcessId, int] = field(default_factory=dict)  # stages of the plan in force; empty: there is none
    number: int = 0  # of the last plan that was asked for
    asked: tuple[ProcessId, ...] = ()  # the peers of the plan under way; empty: there is none
    peers: frozenset[ProcessId] = frozenset()  # of the last plan that was asked for
    asked_s: float = -math.inf  # when the last one was asked for
    took_s: float = 0.0  # how long the last one took
    due: bool = False  # something has changed since
    changes: int = 0  # of links, since
    surveying: dict[ProcessId, float] = field(default_factory=dict)  # who measures its links, and until when at most

    def begin(self, peers: Iterable[ProcessId], now: float) -> int:
        """Begin a plan, and return its number."""
        self.number, self.asked, self.asked_s = self.number + 1, tuple(peers), now
        self.due, self.changes, self.peers = False, 0, frozenset(self.asked)
        return self.number

    def take(self, number: int, now: float) -> tuple[ProcessId, ...]:
        """End the plan under way, and return its peers; none: the answer is to an earlier one."""
        if number != self.number:
            return ()
        peers, self.asked, self.took_s = self.asked, (), now - self.asked_s
        return peers

    def learn(self, sender: ProcessId, links: Iterable[tuple[ProcessId, float, float]]) -> None:
        """Record what a peer has measured. A plan is due when enough links have changed."""
        self.changes += self.links.learn(sender, links)
        self.due |= self.changes > CHANGED_SHARE * self.links.count

    def granted(self, process: ProcessId, stage: int) -> None:
        """Note the stage of a peer. One that the plan does not have there is in none: it would go to and fro."""
        if self.target.get(process, stage) != stage:
            del self.target[process]
