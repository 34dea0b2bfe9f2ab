"""A map of links: what any two peers have measured of the link between them, whatever stages they serve."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from swarmflow.core.protocol.messages.checks import FASTEST, SECONDS_MAX, SLOWEST
from swarmflow.core.protocol.types import MeasuredLink, ProcessId

CHANGED = 0.5  # relative change of a rate, or a latency, that may be worth another plan
LATENCY_S = 0.005  # a change by less is none: a busy process answers so much later
KNOWN_MIN = 0.9  # share of the peers of which a link has to be known, or which have to have measured theirs


class _LinkRecord(NamedTuple):
    """A link: its last measurement, and the better values of that and the one before.

    Other traffic can only slow a link down.
    """

    last: tuple[float, float]
    latency_s: float
    rate: float  # in bytes/s


@dataclass(slots=True)
class LinkMap:
    """The last two measurements of each link, as its ends have reported them."""

    _found: dict[ProcessId, dict[ProcessId, _LinkRecord]] = field(default_factory=dict)  # by both ends

    def learn(self, sender: ProcessId, links: Iterable[tuple[ProcessId, float, float]]) -> int:
        """Record what a peer has measured of its links; return how many were not known, or have changed by much."""
        changed, of_sender = 0, self._found.setdefault(sender, {})
        for to, latency_s, rate in links:
            if to == sender:
                continue
            last = min(latency_s, SECONDS_MAX), min(FASTEST, max(SLOWEST, rate))
            before = of_sender.get(to)
            former = before or self._found.get(to, {}).get(sender)
            earlier = before.last if before is not None else last
            known = of_sender[to] = _LinkRecord(last, min(last[0], earlier[0]), max(last[1], earlier[1]))
            changed += former is None or _differ(former, known)
        return changed

    def keep(self, processes: Collection[ProcessId]) -> None:
        """Forget the links of all others."""
        gone = [process for process in self._found if process not in processes]
        for process in gone:
            del self._found[process]
        for links in self._found.values():
            for process in [to for to in links if to not in processes]:
                del links[process]

    @property
    def peers(self) -> list[ProcessId]:
        """Those who have reported links."""
        return list(self._found)

    @property
    def count(self) -> int:
        """How many links are known, in one direction each."""
        return sum(map(len, self._found.values()))

    def touches(self, peers: Sequence[ProcessId]) -> bool:
        """Return whether a link of nearly each of these peers is known."""
        near = {to for process in peers for to in self._found.get(process, ())}
        return sum(bool(self._found.get(process)) or process in near for process in peers) >= KNOWN_MIN * len(peers)

    def covers(self, peers: Sequence[ProcessId]) -> bool:
        """Return whether nearly all of these peers have measured their links."""
        return sum(bool(self._found.get(process)) for process in peers) >= KNOWN_MIN * len(peers)

    def between(self, peers: Sequence[ProcessId]) -> list[MeasuredLink]:
        """Return the known links between these peers, which are named by their places."""
        place_of = {process: place for place, process in enumerate(peers)}
        return [
            MeasuredLink(place, place_of[to], known.latency_s, known.rate)
            for place, process in enumerate(peers)
            for to, known in self._found.get(process, {}).items()
            if to in place_of
        ]


def _differ(former: _LinkRecord, now: _LinkRecord) -> bool:
    """Return whether a link is not what it was. A latency counts by what it adds to the longer of both."""
    longer_s = max(former.latency_s, now.latency_s)
    rates = abs(now.rate - former.rate) > CHANGED * former.rate
    return rates or abs(now.latency_s - former.latency_s) > CHANGED * longer_s > LATENCY_S
