"""The owners that sum the pieces of an all-reduce, chosen so that no slow link holds up the step."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

from swarmflow.core.protocol.messages import LinkRateReport
from swarmflow.core.protocol.types import Group, ProcessId, Roster
from swarmflow.core.routing.link_rates import plausible_rates

# Of a group. In a larger one a slow way carries a small share anyway, and helpers take bandwidth from others: with 8 on
# a stage and connections of 2 Gb/s (experiments/dtfm_cases, case 4) an iteration took 17.5 s instead of 14.8.
MEMBERS_MAX = 4
HELPERS_MAX = 8  # peers of the stages beside it that may sum for a group
LOTS = 24  # into which a gradient is divided
POWER = 8.0  # of a busy time: the larger, the more the longest alone counts
WORTH = 0.8  # of the time with equal shares: what is gained has to be more than measurements are wrong by

LinkEnds = tuple[ProcessId, ProcessId]


@dataclass
class LinkTable:
    """The link rates that processes have reported. elements: of the gradients that they hold, by group."""

    rates: dict[LinkEnds, float] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)
    _best: dict[ProcessId, float] = field(default_factory=dict)

    def learn(self, process: ProcessId, stage: int, report: LinkRateReport) -> None:
        """Enter what a process has measured, and its stage's gradient length, in which all its peers must agree.

        Were anybody believed what it says of another stage, the parts of honest peers would not fit.
        """
        name = f"stage-{stage}"
        for group, elements in report.elements:
            if group == name:
                self.elements[name] = elements if self.elements.get(name, elements) == elements else 0
        for other, rate in plausible_rates(report).items():
            self.rates[process, other] = rate
            for end in (process, other):
                self._best[end] = max(self._best.get(end, 0.0), rate)

    @cached_property
    def usual(self) -> float:
        """The median rate of the measured links, which is assumed for the others."""
        return median(self.rates.values())

    def knows(self, one: ProcessId, other: ProcessId) -> bool:
        """Return whether either of them has reported a rate."""
        return (one, other) in self.rates or (other, one) in self.rates

    def rate(self, one: ProcessId, other: ProcessId) -> float:
        """Return the rate of a link, else of the reverse one, else the usual one."""
        return self.rates.get((one, other)) or self.rates.get((other, one)) or self.usual

    def best(self, process: ProcessId) -> float:
        """The fastest of its links: more than that its own connection need not carry."""
        return self._best.get(process) or self.usual


Line = tuple[ProcessId, ProcessId | None, bool]  # a way (True), or a connection: what goes out (True) or comes in


@dataclass(slots=True)
class _Load:
    """How long links and connections are busy with all-reduces, by line, in seconds."""

    links: LinkTable
    busy_s: defaultdict[Line, float] = field(default_factory=lambda: defaultdict(float))

    def lot(self, group: Group, gives: Collection[ProcessId], owner: ProcessId, size: float) -> dict[Line, float]:
        """Return what a lot takes if this process sums it."""
        taken: defaultdict[Line, float] = defaultdict(float)
        for member in group.members:
            if member == owner:
                continue
            for one, other in ((member, owner), (owner, member)):
                if one == owner or one in gives:
                    taken[one, other, True] += size / self.links.rate(one, other)
                    taken[one, None, True] += size / self.links.best(one)
                    taken[other, None, False] += size / self.links.best(other)
        return taken

    def add(self, taken: Mapping[Line, float]) -> None:
        """Give a lot to an owner."""
        for line, seconds in taken.items():
            self.busy_s[line] += seconds

    def rise(self, taken: Mapping[Line, float]) -> float:
        """How much a lot adds to what should be least: close to the longest time, but never blind to the others."""
        busy_s = self.busy_s
        return math.fsum((busy_s[line] + seconds) ** POWER - busy_s[line] ** POWER for line, seconds in taken.items())

    @property
    def longest_s(self) -> float:
        """Return the time of the line that is busy longest."""
        return max(self.busy_s.values(), default=0.0)


def peers_beside(roster: Roster) -> dict[str, tuple[ProcessId, ...]]:
    """Who may sum for each stage, by its group: the peers beside it, who know how to reach its own."""
    peers = ((), *roster.ids[:-1], ())
    return {f"stage-{stage}": (*peers[stage], *peers[stage + 2]) for stage in range(len(roster.stages))}


def shared_out(
    groups: Sequence[Group], gives: Collection[ProcessId], beside: Mapping[str, Sequence[ProcessId]], links: LinkTable
) -> list[Group]:
    """The groups, each with who sums its pieces. gives: who has something to add. beside: who may sum for a group.

    A slow way between two members is gone around by a third peer that has faster ones to both. The least longest time
    is a linear program over all groups together; lots that go one after the other to whoever is busied least by them
    come close to it in a few milliseconds.
    """
    known = [group for group in groups if _known(group, links)]
    equal = _Load(links)
    for group in known:
        for owner in group.members:
            equal.add(equal.lot(group, gives, owner, links.elements[group.name] / len(group.members)))
    load = _Load(links)
    choices = {group.name: _choices(group, gives, beside.get(group.name, ()), load) for group in known}
    owners: dict[str, list[ProcessId]] = {group.name: [] for group in known}
    for _ in range(LOTS):
        for name, lots in owners.items():
            rises = {owner: load.rise(taken) for owner, taken in choices[name].items()}
            best = min(rises, key=lambda owner, rises=rises: (rises[owner], owner))  # type: ignore[misc]
            load.add(choices[name][best])
            lots.append(best)
    if load.longest_s > WORTH * equal.longest_s:
        return list(groups)
    turns = {name: _spread(lots) for name, lots in owners.items()}
    return [
        replace(group, owners=turns[group.name], elements=links.elements[group.name]) if group.name in turns else group
        for group in groups
    ]


def _known(group: Group, links: LinkTable) -> bool:
    members = group.members
    if not 2 <= len(members) <= MEMBERS_MAX or links.elements.get(group.name, 0) <= 0:
        return False
    return any(links.knows(one, other) for one in members for other in members if one < other)


def _choices(
    group: Group, gives: Collection[ProcessId], beside: Sequence[ProcessId], load: _Load
) -> dict[ProcessId, dict[Line, float]]:
    """Return what a lot takes, by the process that sums it."""
    candidates = [*group.members, *_helpers(group, beside, load.links)]
    return {one: load.lot(group, gives, one, load.links.elements[group.name] / LOTS) for one in candidates}


def _helpers(group: Group, beside: Sequence[ProcessId], links: LinkTable) -> list[ProcessId]:
    """Return the peers with the fastest measured links to all members."""
    slowest = {}
    for process in beside:
        known = [links.rate(process, member) for member in group.members if links.knows(process, member)]
        if 2 * len(known) > len(group.members):
            slowest[process] = min(known)
    return sorted(slowest, key=lambda process: (-slowest[process], process))[:HELPERS_MAX]


def _spread(lots: Sequence[ProcessId]) -> tuple[ProcessId, ...]:
    """In turn, each as evenly among the others as can be: so none waits while another has two pieces at a time."""
    counts = Counter(lots)
    places = [((turn + 0.5) / count, owner) for owner, count in counts.items() for turn in range(count)]
    return tuple(owner for _, owner in sorted(places))
