"""A map of links: what any two peers have measured of the link between them, whatever stages they serve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from swarmflow.core.protocol.messages.checks import FASTEST, SECONDS_MAX, SLOWEST
from swarmflow.core.protocol.types import ProcessId

CHANGED = 0.5  # relative change of a rate, or a latency, that may be worth another plan
LATENCY_S = 0.005  # a change by less is none: a busy process answers so much later
KEPT = 2  # measurements of a link; other traffic can only slow one down, so the better of them counts
UNKNOWN_MAX = 0.1  # share of the peers of which no link may be known


class MeasuredLink(NamedTuple):
    """A link in one direction."""

    latency_s: float
    rate: float  # in bytes/s


@dataclass(slots=True)
class LinkMap:
    """The last measurements of each link, as its ends have reported them."""

    _found: dict[ProcessId, dict[ProcessId, tuple[MeasuredLink, ...]]] = field(default_factory=dict)  # by both ends

    def learn(self, sender: ProcessId, links: Iterable[tuple[ProcessId, float, float]]) -> bool:
        """Record what a peer has measured of its links; return whether one was not known, or has changed by much."""
        changed, of_sender = False, self._found.setdefault(sender, {})
        for to, latency_s, rate in links:
            found = MeasuredLink(min(latency_s, SECONDS_MAX), min(FASTEST, max(SLOWEST, rate)))
            former = self._of(sender, to) or self._of(to, sender)
            of_sender[to] = (*of_sender.get(to, ())[1 - KEPT :], found)
            changed |= former is None or _differ(former, self._of(sender, to) or found)
        return changed

    def forget(self, gone: Iterable[ProcessId]) -> None:
        """Forget the links of processes that are gone."""
        for process in gone:
            self._found.pop(process, None)

    @property
    def peers(self) -> list[ProcessId]:
        """Those who have reported links."""
        return list(self._found)

    def suffices(self, peers: Sequence[ProcessId]) -> bool:
        """Return whether a link of nearly each of these peers is known."""
        near = {to for process in peers for to in self._found.get(process, ())}
        unknown = sum(not self._found.get(process) and process not in near for process in peers)
        return unknown <= UNKNOWN_MAX * len(peers)

    def tables(self, peers: Sequence[ProcessId]) -> tuple[list[list[float]], list[list[float]]]:
        """Return the latencies in seconds and the rates in bytes/s between these peers, `[from][to]`.

        A link that only its other end has measured is as that says; one that nobody has, as the median one.
        """
        known = self._between(peers)
        usual_s = median(link.latency_s for *_, link in known) if known else 0.0
        usual = median(link.rate for *_, link in known) if known else FASTEST
        latency_s, rates = ([[value] * len(peers) for _ in peers] for value in (usual_s, usual))
        for one, other, link in [*((other, one, link) for one, other, link in known), *known]:
            latency_s[one][other], rates[one][other] = link
        return latency_s, rates

    def measured(self, peers: Sequence[ProcessId]) -> int:
        """Return how many directions of links between these peers were measured."""
        return len(self._between(peers))

    def _between(self, peers: Sequence[ProcessId]) -> list[tuple[int, int, MeasuredLink]]:
        """Return the measured links between these peers, each with the places of its ends."""
        place_of = {process: place for place, process in enumerate(peers)}
        return [
            (place_of[process], place_of[to], link)
            for process in peers
            for to in self._found.get(process, ())
            if to in place_of and (link := self._of(process, to)) is not None
        ]

    def _of(self, sender: ProcessId, to: ProcessId) -> MeasuredLink | None:
        measured = self._found.get(sender, {}).get(to)
        if not measured:
            return None
        return MeasuredLink(min(link.latency_s for link in measured), max(link.rate for link in measured))


def _differ(former: MeasuredLink, now: MeasuredLink) -> bool:
    """Return whether a link is not what it was. A latency counts by what it adds to the larger of both."""
    longer_s = max(former.latency_s, now.latency_s)
    rates = abs(now.rate - former.rate) > CHANGED * former.rate
    return rates or abs(now.latency_s - former.latency_s) > CHANGED * longer_s > LATENCY_S
