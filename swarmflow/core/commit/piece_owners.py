"""The owners that sum the pieces of an all-reduce, chosen so that no slow link holds up the step."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from swarmflow.core.protocol.types import Group, ProcessId, Roster
from swarmflow.core.routing.link_rates import LinkTable

# Members of a group. In a larger one a slow link carries a small share anyway, and helpers take bandwidth from other
# transfers: with 8 peers on a stage and connections of 2 Gb/s (experiments/dtfm_cases, case 4) an iteration took 17.5 s
# instead of 14.8.
MEMBERS_MAX = 4
HELPERS_MAX = 8  # peers of the adjacent stages that may sum for a group
PORTIONS = 24  # into which a gradient is divided; each gets its owner on its own
POWER = 8.0  # exponent of a busy time: the larger, the more the longest one alone counts
WORTH = 0.8  # the largest share of the time with equal portions: a smaller gain may be an error of measurement

Resource = tuple[ProcessId, ProcessId | None, bool]
"""What a transfer occupies: a link (from, to, True), an uplink (from, None, True) or a downlink (to, None, False)."""


@dataclass(slots=True)
class _Load:
    """How long the all-reduces occupy each link and connection."""

    links: LinkTable
    busy_s: defaultdict[Resource, float] = field(default_factory=lambda: defaultdict(float))

    def transfers_s(
        self, group: Group, contributors: Collection[ProcessId], owner: ProcessId, elements: float
    ) -> dict[Resource, float]:
        """Return how long a portion occupies each resource if this process sums it.

        Every contributor sends its part to the owner, and the owner sends the sum to every member.
        """
        found: defaultdict[Resource, float] = defaultdict(float)
        for member in group.members:
            if member == owner:
                continue
            for one, other in ((member, owner), (owner, member)):
                if one == owner or one in contributors:
                    found[one, other, True] += elements / self.links.rate(one, other)
                    found[one, None, True] += elements / self.links.connection_rate(one)
                    found[other, None, False] += elements / self.links.connection_rate(other)
        return found

    def add(self, transfers_s: Mapping[Resource, float]) -> None:
        """Add the transfers of a portion."""
        for resource, seconds in transfers_s.items():
            self.busy_s[resource] += seconds

    def increase(self, transfers_s: Mapping[Resource, float]) -> float:
        """Return how much a portion adds to the objective, the sum of all busy times to the power of POWER.

        That is close to the longest busy time, but still tells two choices apart that leave the longest one as it is.
        """
        busy_s = self.busy_s
        return math.fsum(
            (busy_s[resource] + seconds) ** POWER - busy_s[resource] ** POWER
            for resource, seconds in transfers_s.items()
        )

    def add_equal(self, group: Group) -> None:
        """Add a group whose members sum equal shares: each sends and receives 2 (n - 1) / n of the gradient."""
        elements = 2 * (len(group.members) - 1) / len(group.members) * self.links.elements.get(group.name, 0)
        for member in group.members:
            seconds = elements / self.links.connection_rate(member)
            self.busy_s[member, None, True] += seconds
            self.busy_s[member, None, False] += seconds

    @property
    def longest_s(self) -> float:
        """Return the time of the resource that is busy longest."""
        return max(self.busy_s.values(), default=0.0)


def adjacent_peers(roster: Roster, busy: Set[ProcessId] = frozenset()) -> dict[str, tuple[ProcessId, ...]]:
    """Return the peers that may sum for each group: those of the adjacent stages, which have its members' addresses.

    busy: peers that sum for no other stage.
    """
    stages = [tuple([peer for peer in ids if peer not in busy]) for ids in roster.ids_by_stage[:-1]]
    peers = ((), *stages, ())
    return {f"stage-{stage}": (*peers[stage], *peers[stage + 2]) for stage in range(len(roster.stages))}


@dataclass(frozen=True, slots=True)
class Owning:
    """Whose sums are doubted, since not all members of a group have had the same."""

    turn: int | None = None  # of the one member of each group that sums all of its pieces; None: several do
    apart: frozenset[frozenset[str]] = frozenset()  # names of two: one has not had what the other says that it summed

    def owners(self, group: Group) -> tuple[ProcessId, ...]:
        """Return the owners of a group's pieces; empty: there is no doubt. Who is doubted sums only if all are."""
        names = {member.name for member in group.members}
        doubted = {name for pair in self.apart if pair <= names for name in pair}
        sound = tuple(member for member in group.members if member.name not in doubted) or group.members
        if self.turn is not None:
            return (sound[self.turn % len(sound)],)
        return sound if doubted else ()


def with_owners(
    groups: Sequence[Group],
    owning: Owning,
    contributors: Collection[ProcessId],
    adjacent: Mapping[str, Sequence[ProcessId]],
    links: LinkTable,
) -> list[Group]:
    """Return the groups with the owners of their pieces: where there are doubts by these, else as the links have it."""
    chosen = {group.name: replace(group, owners=owning.owners(group)) for group in groups}
    free = [group for group in groups if not chosen[group.name].owners]
    chosen |= {group.name: group for group in choose_owners(free, contributors, adjacent, links)}
    return list(chosen.values())


def choose_owners(
    groups: Sequence[Group],
    contributors: Collection[ProcessId],
    adjacent: Mapping[str, Sequence[ProcessId]],
    links: LinkTable,
) -> list[Group]:
    """Return the groups with the owners of their pieces; a group stays as it is where that is as good.

    contributors: processes that have a gradient to add. adjacent: further processes that may sum for a group, by name.

    A third peer with fast links to two members replaces the slow link between these. The least longest busy time is a
    linear program over all groups together. Portions that go one after the other to the owner with the least increase
    come close to it in a few milliseconds.
    """
    measured = [group for group in groups if _is_measured(group, links)]
    if not measured:
        return list(groups)
    equal, load = _Load(links), _Load(links)
    for group in groups:
        if group not in measured:  # its members are as busy as others, and no better helpers
            equal.add_equal(group)
            load.add_equal(group)
    for group in measured:
        for owner in group.members:
            share = links.elements[group.name] / len(group.members)
            equal.add(equal.transfers_s(group, contributors, owner, share))
    candidates = {
        group.name: _candidates(group, contributors, adjacent.get(group.name, ()), load) for group in measured
    }
    owners: dict[str, list[ProcessId]] = {group.name: [] for group in measured}
    for _ in range(PORTIONS):
        for name, chosen in owners.items():
            increases = {owner: load.increase(transfers_s) for owner, transfers_s in candidates[name].items()}
            best = min(increases, key=lambda owner, increases=increases: (increases[owner], owner))  # type: ignore[misc]
            load.add(candidates[name][best])
            chosen.append(best)
    if load.longest_s > WORTH * equal.longest_s:
        return list(groups)
    turns = {name: _interleaved(chosen) for name, chosen in owners.items()}
    return [
        replace(group, owners=turns[group.name], elements=links.elements[group.name]) if group.name in turns else group
        for group in groups
    ]


def _is_measured(group: Group, links: LinkTable) -> bool:
    """Return whether enough is measured to choose the owners of a small group."""
    members = group.members
    if not 2 <= len(members) <= MEMBERS_MAX or links.elements.get(group.name, 0) <= 0:
        return False
    return any(links.is_measured(one, other) for one in members for other in members if one < other)


def _candidates(
    group: Group, contributors: Collection[ProcessId], adjacent: Sequence[ProcessId], load: _Load
) -> dict[ProcessId, dict[Resource, float]]:
    """Return how long a portion occupies each resource, by the process that sums it."""
    elements = load.links.elements[group.name] / PORTIONS
    owners = (*group.members, *_helpers(group, adjacent, load.links))
    return {owner: load.transfers_s(group, contributors, owner, elements) for owner in owners}


def _helpers(group: Group, adjacent: Sequence[ProcessId], links: LinkTable) -> list[ProcessId]:
    """Return the peers of adjacent stages whose slowest measured link to a member is fastest.

    A peer without a measured link to more than half of the members is left out.
    """
    slowest = {}
    for process in adjacent:
        rates = [links.rate(process, member) for member in group.members if links.is_measured(process, member)]
        if 2 * len(rates) > len(group.members):
            slowest[process] = min(rates)
    return sorted(slowest, key=lambda process: (-slowest[process], process))[:HELPERS_MAX]


def _interleaved(owners: Sequence[ProcessId]) -> tuple[ProcessId, ...]:
    """Return the owners with each one's turns spread evenly, so that none gets two pieces while another gets none."""
    counts = Counter(owners)
    places = [((turn + 0.5) / count, owner) for owner, count in counts.items() for turn in range(count)]
    return tuple(owner for _, owner in sorted(places))
