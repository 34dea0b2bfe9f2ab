"""The processes of a run as the leader knows them: by stage, by phase, and when each was last seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from swarmflow.core.membership.duties import Duty
from swarmflow.core.membership.incarnations import Incarnations
from swarmflow.core.membership.member_phase import MEMBER, MemberPhase
from swarmflow.core.membership.step_estimate import StagePower, power_of_one, together
from swarmflow.core.protocol.messages import Heartbeat, Join, LinkRateReport, PeerSummary, Ready
from swarmflow.core.protocol.messages.checks import FASTEST, SLOWEST
from swarmflow.core.protocol.types import Member, Plan, ProcessId, Roster

IDLE = (MemberPhase.BARRED, MemberPhase.MEASURING)  # it is granted nothing yet, and counts for no stage
SPEED_MIN = 1e-9  # a computer is faster than that, whatever its peer says
REBALANCE_S_MIN = 1.0  # a peer is moved no more often, whatever it says
STATED_SHARE_MIN = 0.25  # of the stated rate of a connection, below which a measured rate counts
LINKS_MIN = 3  # with known rates, before they tell what limits them
UNEVEN = 0.5  # of the fastest link of a peer: its links differ where most of them are slower
DONORS_MAX = 8  # who are told to a process that loads; it is granted again should they all be gone


@dataclass(slots=True)
class MemberRecord:
    """What a leader knows of one process."""

    member: Member
    role: str
    wish: int  # the stage that it asked for, -1: any
    speed: float  # relative, for the placement
    rebalance_s: float  # how often it may be moved, 0: never
    settled_s: float  # when it was placed or moved last
    last_seen_s: float  # when its last message arrived
    keeps: bool = False  # it has space for copies on its disk
    stated_rate: float = 0.0  # of its uplink, as its user limits it, in bytes/s; 0: not stated
    unfit: frozenset[int] = frozenset()  # stages for which its memory has no room
    phase: MemberPhase = field(init=False, default=MEMBER.initial)
    version: int = field(init=False, default=-1)  # that it holds, or loads
    draining: bool = field(init=False, default=False)  # it means to leave
    hopeful: bool = field(init=False, default=True)  # a donor had what it loads, when it was granted its stage
    tries: int = field(init=False, default=0)  # steps that closed without it since it was ready too late, 0: it was not
    roots: dict[int, str] = field(init=False, default_factory=dict)  # of its state, by version, as it reports them
    claim: Ready | None = field(init=False, default=None)  # what it has loaded, until it is known what that should be
    made: str = field(init=False, default="")  # the root of the run's first version, as it has made that itself
    donors: frozenset[ProcessId] = field(init=False, default=frozenset())  # of its last grant
    grants: int = field(init=False, default=-1)  # the number of its last grant
    load: Heartbeat = field(init=False, default_factory=Heartbeat)  # the last one
    rates: LinkRateReport | None = field(init=False, default=None)
    measured_rate: float = field(init=False, default=0.0)  # of its fastest link in any report, in bytes/s
    uneven: bool = field(init=False, default=False)  # its links differ: the paths limit them, not its connection
    surveys: int = field(init=False, default=0)  # that were asked of it
    survey_until_s: float = field(init=False, default=0.0)  # how long the last one is waited for
    surveyed_s: float = field(init=False, default=-math.inf)  # when the last one was reported or given up
    summary: PeerSummary | None = field(init=False, default=None)  # the last one
    duty: Duty = field(init=False, default_factory=Duty)  # what it owes now
    root_duty: Duty = field(init=False, default_factory=Duty)  # the root of its state, beside that
    needed: tuple[int, bool] = field(init=False, default=(-1, False))  # why it cannot go yet, as it was sent last
    only_copies: list[int] = field(init=False, default_factory=list)  # stages for whose other copies it waits to leave
    stands_in: bool = field(init=False, default=False)  # not on the stage that it asked for, which had others

    @property
    def process(self) -> ProcessId:
        """Its id."""
        return self.member.process

    def holds(self, version: int) -> bool:
        """Return whether its state is at this version."""
        return self.phase is MemberPhase.READY and self.version == version

    def stays_with(self, version: int) -> bool:
        """Return whether its state is at this version and it means to stay."""
        return self.holds(version) and not self.draining

    def loaded(self, version: int, capacity: int) -> None:
        """Record that it has loaded its stage. capacity: how many microbatches fit in its memory beside it."""
        self.version = version
        self.member = replace(self.member, capacity=max(1, capacity))

    @property
    def power(self) -> StagePower:
        """What it can do. Memory is known once it has loaded, unless its user has stated how many microbatches fit.

        A link that is busy is measured too low: the stated rate counts, unless a small part of it was measured at most.
        """
        rate = self.stated_rate
        if 0.0 < self.measured_rate < STATED_SHARE_MIN * rate or rate == 0.0:
            rate = self.measured_rate
        capacity = self.member.capacity
        stated = capacity > 1 or self.phase is MemberPhase.READY
        return power_of_one(self.speed, capacity if stated else math.inf, rate)

    @property
    def movable(self) -> bool:
        """Whether it may serve another stage than the one that it began with."""
        return self.wish < 0 or self.rebalance_s > 0

    def may_serve(self, stage: int) -> bool:
        """Whether it may serve a stage, and has memory for it."""
        return stage not in self.unfit and (self.movable or stage == self.wish)


@dataclass(slots=True)
class _Stage:
    """The peers of a stage."""

    entries: dict[ProcessId, MemberRecord] = field(default_factory=dict)
    ready: int = 0  # of them
    power: StagePower | None = None  # of those that mean to stay, all together; None: to be added up anew


@dataclass(slots=True)
class Membership:
    """The processes of a run, as its leader knows them.

    What each message needs (who holds a stage, who loads, how fast a stage is) is found by stage, since there may be
    ten thousand members. So phases, stages and wishes to leave change through the methods here.
    """

    plan: Plan
    known: dict[ProcessId, MemberRecord] = field(init=False, default_factory=dict)
    incarnations: Incarnations = field(init=False, default_factory=Incarnations)
    moved_s: float = field(init=False, default=0.0)  # of the last move between stages
    # Members that computed what is not finite, or with which the step failed twice: they take no part while others of
    # their stage are there.
    suspended: dict[ProcessId, None] = field(init=False, default_factory=dict)
    _stages: list[_Stage] = field(init=False)
    _loading: dict[ProcessId, MemberRecord] = field(init=False, default_factory=dict)
    _ready: int = field(init=False, default=0)
    _idle: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._stages = [_Stage() for _ in range(self.plan.stages)]

    # --- what changes -------------------------------------------------------------------------------------------------

    def enter(self, join: Join, stage: int, now: float) -> MemberRecord:
        """Add a process that joins, on a stage (-1: a trainer)."""
        member = replace(join.member, stage=stage)
        speed = max(join.speed, SPEED_MIN)
        rebalance_s = max(join.rebalance_s, REBALANCE_S_MIN) if join.rebalance_s else 0.0
        terms = member, join.role, join.member.stage, speed, rebalance_s, now, now, join.keeps, _rate_of(join)
        entry = MemberRecord(*terms, frozenset(join.unfit))
        self.known[member.process] = entry
        self.incarnations.enter(member.process)
        self._list(entry)
        if join.role == "trainer":
            self.mark(entry, MemberPhase.READY)
        return entry

    def leave(self, process: ProcessId) -> MemberRecord | None:
        """Remove a process."""
        entry = self.known.pop(process, None)
        self.suspended.pop(process, None)
        if entry is not None:
            self.mark(entry, MemberPhase.GONE)
            self._unlist(entry)
            self.incarnations.leave(process)
        return entry

    def mark(self, entry: MemberRecord, to: MemberPhase) -> None:
        """Move a member to another phase."""
        phase = MEMBER.move(entry.phase, to)
        if entry.role == "peer":
            became = (phase is MemberPhase.READY) - (entry.phase is MemberPhase.READY)
            self._ready += became
            self._stages[entry.member.stage].ready += became
            if phase is MemberPhase.LOADING:
                self._loading[entry.process] = entry
            else:
                self._loading.pop(entry.process, None)
            if phase in IDLE or entry.phase in IDLE:
                self._idle += (phase in IDLE) - (entry.phase in IDLE)
                self._stages[entry.member.stage].power = None
        entry.phase = phase

    def move(self, entry: MemberRecord, stage: int) -> None:
        """Move a peer to another stage."""
        self._unlist(entry)
        entry.stands_in &= stage != entry.wish
        entry.member = replace(entry.member, stage=stage)
        self._list(entry)

    def changed(self, entry: MemberRecord) -> None:
        """Note that what a member can do, or whether it means to stay, has changed."""
        if entry.role == "peer":
            self._stages[entry.member.stage].power = None

    def _list(self, entry: MemberRecord) -> None:
        if entry.role == "peer":
            stage = self._stages[entry.member.stage]
            stage.entries[entry.process], stage.power = entry, None
            stage.ready += entry.phase is MemberPhase.READY

    def _unlist(self, entry: MemberRecord) -> None:
        if entry.role == "peer":
            stage = self._stages[entry.member.stage]
            stage.power = None
            stage.ready -= entry.phase is MemberPhase.READY
            del stage.entries[entry.process]

    # --- who is there -------------------------------------------------------------------------------------------------

    def peers(self, stage: int | None = None) -> list[MemberRecord]:
        """Return the peers of a stage (or of all), in the order of their ids."""
        if stage is not None:
            return sorted(self._stages[stage].entries.values(), key=lambda e: e.process)
        return sorted((e for e in self.known.values() if e.role == "peer"), key=lambda e: e.process)

    def served(self, stage: int, version: int) -> bool:
        """Return whether a peer holds a stage at a version and means to stay."""
        entries = self._stages[stage].entries.values()
        return any(e.stays_with(version) for e in entries)

    def lost(self, version: int) -> list[int]:
        """Return the stages whose state no peer holds, and that none can be expected to hold soon."""
        stages = (stage.entries.values() for stage in self._stages)
        return [n for n, entries in enumerate(stages) if not any(e.holds(version) or _coming(e) for e in entries)]

    def _trusted(self, entries: list[MemberRecord]) -> list[MemberRecord]:
        """Return those of a stage's peers that are not suspended; all of them where there are no others."""
        return [e for e in entries if e.process not in self.suspended] or entries

    def ready(self, stage: int, version: int) -> list[MemberRecord]:
        """Return the staying peers that hold a stage at a version; suspended ones only while there are no others."""
        found = [e for e in self.peers(stage) if e.stays_with(version)]
        return self._trusted(found) if self.suspended else found

    def ready_peers(self, stage: int | None = None) -> int:
        """Return how many peers of a stage (or of all) hold it, at whatever version."""
        return self._ready if stage is None else self._stages[stage].ready

    def trainers(self) -> list[MemberRecord]:
        """Return the trainers that mean to stay and are not suspended, in the order of their ids."""
        entries = (e for e in self.known.values() if e.role == "trainer" and not e.draining)
        return sorted((e for e in entries if e.process not in self.suspended), key=lambda e: e.process)

    def mates(self, process: ProcessId, version: int) -> list[ProcessId]:
        """Return the staying processes that can replace one: of its stage, or as trainers; suspended ones too."""
        entry = self.known.get(process)
        if entry is None:
            return []
        alike = self.peers(entry.member.stage) if entry.role == "peer" else self.known.values()
        able = (e for e in alike if e.role == entry.role and e.phase is MemberPhase.READY and not e.draining)
        return [e.process for e in able if e.process != process and (e.role == "trainer" or e.version == version)]

    def keepers(self, version: int) -> list[Member]:
        """Return the peers that keep copies and hold the version that they serve."""
        return [e.member for e in self.peers() if e.keeps and e.stays_with(version)]

    def idle(self) -> list[MemberRecord]:
        """Return the peers that are granted nothing yet: they were put out a while ago, or measure their links."""
        return [entry for entry in self.peers() if entry.phase in IDLE] if self._idle else []

    def loading(self, version: int | None = None) -> list[MemberRecord]:
        """Return the peers that are loading this version, or any."""
        entries = [e for e in self._loading.values() if version is None or e.version == version]
        return sorted(entries, key=lambda e: e.process)

    def donors(self, stage: int, version: int, but: ProcessId, turn: int = 0) -> tuple[Member, ...]:
        """Return the peers that can give a stage's state, at most DONORS_MAX, in the order in which to ask them.

        Peers that load the stage at the same time begin with different donors, since one uplink would limit them all.
        """
        peers = [e for e in self.peers(stage) if e.process != but]
        found = [e.member for e in self._trusted([e for e in peers if e.holds(version)])]
        turn = (turn + sum(e.phase is MemberPhase.LOADING for e in peers)) % len(found) if found else 0
        return tuple([*found[turn:], *found[:turn]][:DONORS_MAX])

    def usual_s(self, stage: int, task: str) -> float:
        """Return the longest usual time between two signs of progress of a stage's peers, 0: not known."""
        return max((entry.duty.usual_s.get(task, 0.0) for entry in self._stages[stage].entries.values()), default=0.0)

    def silent(self, now: float, silence_s: float, but: ProcessId) -> list[ProcessId]:
        """Return the processes from which no message has arrived for too long."""
        return sorted(p for p, e in self.known.items() if now - e.last_seen_s > silence_s and p != but)

    def roster(self, version: int) -> Roster:
        """Return all members that could take part in a step at this version."""
        stages = tuple(tuple(e.member for e in self.ready(stage, version)) for stage in range(self.plan.stages))
        return Roster(stages, tuple(e.member for e in self.trainers()))

    def holders(self, version: int) -> Roster:
        """Return the peers that hold a version, those that mean to leave too."""
        ready = [e for e in self.peers() if e.holds(version)]
        stages = [self._trusted([e for e in ready if e.member.stage == s]) for s in range(self.plan.stages)]
        return Roster(tuple(tuple(e.member for e in stage) for stage in stages))

    def power(self, stage: int) -> StagePower:
        """Return what the peers of a stage that mean to stay can do, all together."""
        found = self._stages[stage]
        if found.power is None:
            entries = found.entries.values()
            found.power = together(e.power for e in entries if not e.draining and e.phase not in IDLE)
        return found.power


def are_uneven(rates: Sequence[float], stated_rate: float) -> bool:
    """Return whether paths limit the links of a peer, and not its own connection: most are far slower than the fastest.

    rates: of its links, in bytes/s. stated_rate: of its connection, 0: not stated.
    """
    if len(rates) < LINKS_MIN or max(rates) >= STATED_SHARE_MIN * stated_rate > 0.0:
        return False
    return median(rates) < UNEVEN * max(rates)


def power_of(join: Join) -> StagePower:
    """Return what a newcomer can do, as far as it says. It has loaded nothing: 1 is no statement of its memory."""
    capacity = join.member.capacity
    return power_of_one(max(join.speed, SPEED_MIN), capacity if capacity > 1 else math.inf, _rate_of(join))


def _rate_of(join: Join) -> float:
    """Return the rate that a process states for its connection, within bounds, in bytes/s; 0: it states none."""
    return min(FASTEST, max(SLOWEST, join.upload_rate)) if join.upload_rate else 0.0


def _coming(entry: MemberRecord) -> bool:
    return entry.phase is MemberPhase.WAITING or (entry.phase is MemberPhase.LOADING and entry.hopeful)
