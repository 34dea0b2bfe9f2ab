"""Who is there: joins, grants of stages, readiness, silence and departures, as the leader sees them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from swarmflow.core.leading.duties import Duty
from swarmflow.core.leading.member_phase import MEMBER, MemberPhase
from swarmflow.core.leading.piece_owners import LinkTable
from swarmflow.core.leading.rebalance import Move, Server, rebalance
from swarmflow.core.messages import Heartbeat, Join, LinkRateReport
from swarmflow.core.types import Member, Plan, ProcessId, Roster

MOVING_PEERS = 20  # of so many one may move in a period
RETIRED_MAX = 4096  # lives that others have replaced; a dead one speaks for no longer than its last messages travel
DONORS_MAX = 8  # who are told to a process that loads; it is granted again should they all be gone


@dataclass(slots=True)
class MemberRecord:
    """One process. phase: `waiting` for a grant, `loading` what it was granted, or `ready` (its state is at `version`);
    `barred`: it was put out a while ago, and is granted nothing yet.

    wish: the stage that it asked for, -1: any. speed: relative, for the placement. rebalance_s: how often it may be
    moved, 0: never. settled_s: when it was placed or moved last. last_seen_s: when it last spoke. hopeful: when it was
    granted its stage, somebody had the state that it is to load. tries: how often it has loaded a version that was out
    of date by then. grants: the number of its last grant. keeps: it has room for copies on its disk. duty: what
    it owes now. needed: what it was told last of why it cannot go yet. stands_in: it serves another stage than the one
    that it asked for, since nobody was left there.
    """

    member: Member
    role: str
    wish: int
    speed: float
    rebalance_s: float
    settled_s: float
    last_seen_s: float
    phase: MemberPhase = field(init=False, default=MEMBER.initial)
    version: int = field(init=False, default=-1)
    draining: bool = field(init=False, default=False)
    hopeful: bool = field(init=False, default=True)
    tries: int = field(init=False, default=0)
    grants: int = field(init=False, default=-1)
    keeps: bool = False
    load: Heartbeat = field(init=False, default_factory=Heartbeat)
    rates: LinkRateReport | None = field(init=False, default=None)
    duty: Duty = field(init=False, default_factory=Duty)
    needed: tuple[int, bool] = field(init=False, default=(-1, False))
    stands_in: bool = field(init=False, default=False)

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

    @property
    def movable(self) -> bool:
        """Whether it may serve another stage than the one that it began with."""
        return self.wish < 0 or self.rebalance_s > 0


@dataclass(slots=True)
class _Stage:
    """The peers of a stage. speed: of those that mean to stay, all together; None: to be added up anew."""

    entries: dict[ProcessId, MemberRecord] = field(default_factory=dict)
    speed: float | None = 0.0


@dataclass(slots=True)
class Membership:
    """The table of processes. It only knows; what follows is decided by the leader. moved_s: of the last move.

    suspended: what they computed was not finite, or the step failed with them twice; while others of their stage are
    there, they take no part.

    What is asked at each message (who holds a stage, who loads, how fast a stage is) is found by stage, since there may
    be ten thousand of them. So phases, stages and wishes to leave change through the methods here.
    """

    plan: Plan
    known: dict[ProcessId, MemberRecord] = field(init=False, default_factory=dict)
    moved_s: float = field(init=False, default=0.0)
    suspended: dict[ProcessId, None] = field(init=False, default_factory=dict)
    _stages: list[_Stage] = field(init=False)
    _names: dict[str, ProcessId] = field(init=False, default_factory=dict)
    _retired: dict[ProcessId, None] = field(init=False, default_factory=dict)
    _loading: dict[ProcessId, MemberRecord] = field(init=False, default_factory=dict)
    _ready: int = field(init=False, default=0)
    _barred: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._stages = [_Stage() for _ in range(self.plan.stages)]

    # --- what changes -------------------------------------------------------------------------------------------------

    def enter(self, join: Join, stage: int, now: float) -> MemberRecord:
        """A process joins, on a stage (-1: a trainer)."""
        member = replace(join.member, stage=stage)
        speed = max(join.speed, 1e-9)
        entry = MemberRecord(member, join.role, join.member.stage, speed, join.rebalance_s, now, now, keeps=join.keeps)
        self.known[member.process] = entry
        self._names[member.process.name] = member.process
        self._list(entry)
        if join.role == "trainer":
            self.mark(entry, MemberPhase.READY)
        return entry

    def leave(self, process: ProcessId) -> MemberRecord | None:
        """A process is gone."""
        entry = self.known.pop(process, None)
        self.suspended.pop(process, None)
        if entry is not None:
            self.mark(entry, MemberPhase.GONE)
            self._unlist(entry)
            if self._names.get(process.name) == process:
                del self._names[process.name]
        return entry

    def retire(self, process: ProcessId) -> None:
        """Another life of the same process has taken its place: it is never let in again."""
        self._retired[process] = None
        if len(self._retired) > RETIRED_MAX:
            del self._retired[next(iter(self._retired))]

    def mark(self, entry: MemberRecord, to: MemberPhase) -> None:
        """Move a member to another phase."""
        phase = MEMBER.move(entry.phase, to)
        if entry.role == "peer":
            self._ready += (phase is MemberPhase.READY) - (entry.phase is MemberPhase.READY)
            if phase is MemberPhase.LOADING:
                self._loading[entry.process] = entry
            else:
                self._loading.pop(entry.process, None)
            if MemberPhase.BARRED in (phase, entry.phase):
                self._barred += (phase is MemberPhase.BARRED) - (entry.phase is MemberPhase.BARRED)
                self._stages[entry.member.stage].speed = None
        entry.phase = phase

    def move(self, entry: MemberRecord, stage: int) -> None:
        """It serves this stage from now on."""
        self._unlist(entry)
        entry.stands_in &= stage != entry.wish
        entry.member = replace(entry.member, stage=stage)
        self._list(entry)

    def drain(self, entry: MemberRecord) -> None:
        """It means to leave."""
        entry.draining = True
        if entry.role == "peer":
            self._stages[entry.member.stage].speed = None

    def _list(self, entry: MemberRecord) -> None:
        if entry.role == "peer":
            stage = self._stages[entry.member.stage]
            stage.entries[entry.process], stage.speed = entry, None

    def _unlist(self, entry: MemberRecord) -> None:
        if entry.role == "peer":
            stage = self._stages[entry.member.stage]
            stage.speed = None
            del stage.entries[entry.process]

    # --- who is there -------------------------------------------------------------------------------------------------

    def retired(self, process: ProcessId) -> bool:
        """Whether another life of the same process has taken its place."""
        return process in self._retired

    def namesake(self, process: ProcessId) -> ProcessId | None:
        """Another life of the same process, if it is still listed."""
        other = self._names.get(process.name)
        return other if other != process else None

    def peers(self, stage: int | None = None) -> list[MemberRecord]:
        """The peers of a stage (or of all), in the order of their ids."""
        if stage is not None:
            return sorted(self._stages[stage].entries.values(), key=lambda e: e.process)
        return sorted((e for e in self.known.values() if e.role == "peer"), key=lambda e: e.process)

    def served(self, stage: int, version: int) -> bool:
        """Whether a peer holds a stage at a version and means to stay."""
        entries = self._stages[stage].entries.values()
        return any(e.stays_with(version) for e in entries)

    def lost(self, version: int) -> list[int]:
        """Stages that nobody serves who means to stay, and that nobody can be expected to serve soon."""
        empty = (stage for stage in range(self.plan.stages) if not self.served(stage, version))
        return [stage for stage in empty if not any(map(_coming, self._stages[stage].entries.values()))]

    def _trusted(self, entries: list[MemberRecord]) -> list[MemberRecord]:
        """Of a stage's peers those that are not suspended; all of them where there are no others."""
        return [e for e in entries if e.process not in self.suspended] or entries

    def ready(self, stage: int, version: int) -> list[MemberRecord]:
        """Peers that hold a stage at a version and mean to stay, but for those suspended while there are others."""
        found = [e for e in self.peers(stage) if e.stays_with(version)]
        return self._trusted(found) if self.suspended else found

    def ready_peers(self) -> int:
        """How many peers hold their stage, whatever it is."""
        return self._ready

    def trainers(self) -> list[MemberRecord]:
        """Trainers that mean to stay and are not suspended, in the order of their ids."""
        entries = (e for e in self.known.values() if e.role == "trainer" and not e.draining)
        return sorted((e for e in entries if e.process not in self.suspended), key=lambda e: e.process)

    def mates(self, process: ProcessId, version: int) -> list[ProcessId]:
        """Who means to stay and can stand in for a process: of its stage, or as a trainer; the suspended ones too."""
        entry = self.known.get(process)
        if entry is None:
            return []
        alike = self.peers(entry.member.stage) if entry.role == "peer" else self.known.values()
        able = (e for e in alike if e.role == entry.role and e.phase is MemberPhase.READY and not e.draining)
        return [e.process for e in able if e.process != process and (e.role == "trainer" or e.version == version)]

    def keepers(self, version: int) -> list[Member]:
        """Peers that keep copies, as soon as they hold the version that they serve."""
        return [e.member for e in self.peers() if e.keeps and e.stays_with(version)]

    def barred(self) -> list[MemberRecord]:
        """The peers that were put out a while ago and are granted nothing yet."""
        return [entry for entry in self.peers() if entry.phase is MemberPhase.BARRED] if self._barred else []

    def only_barred(self, stage: int) -> bool:
        """Whether nobody but peers that were put out a while ago is there for a stage."""
        return all(entry.phase is MemberPhase.BARRED for entry in self._stages[stage].entries.values())

    def loading(self, version: int | None = None) -> list[MemberRecord]:
        """Peers that are loading this version now, or any."""
        entries = [e for e in self._loading.values() if version is None or e.version == version]
        return sorted(entries, key=lambda e: e.process)

    def donors(self, stage: int, version: int, but: ProcessId, turn: int = 0) -> tuple[Member, ...]:
        """Who can give a stage's state, at most DONORS_MAX, the one to be asked first at the front.

        Those who load the stage at the same time begin with different donors: one uplink for all would be the limit.
        """
        peers = [e for e in self.peers(stage) if e.process != but]
        found = [e.member for e in self._trusted([e for e in peers if e.holds(version)])]
        turn = (turn + sum(e.phase is MemberPhase.LOADING for e in peers)) % len(found) if found else 0
        return tuple([*found[turn:], *found[:turn]][:DONORS_MAX])

    def usual_s(self, stage: int, task: str) -> float:
        """The longest time between two signs of progress that is usual with the peers of a stage, 0: not known."""
        return max((entry.duty.usual_s.get(task, 0.0) for entry in self._stages[stage].entries.values()), default=0.0)

    def links(self) -> LinkTable:
        """Return the link rates that the peers have reported."""
        links = LinkTable()
        for entry in self.known.values():
            if entry.rates is not None:
                links.learn(entry.process, entry.member.stage, entry.rates)
        return links

    def mark_all_seen(self, now: float) -> None:
        """Count everybody as heard of."""
        for entry in self.known.values():
            entry.last_seen_s = now

    def silent(self, now: float, silence_s: float, but: ProcessId) -> list[ProcessId]:
        """Processes that have not been heard of for too long."""
        return sorted(p for p, e in self.known.items() if now - e.last_seen_s > silence_s and p != but)

    def roster(self, version: int) -> Roster:
        """Everybody who could take part in a step at this version."""
        stages = tuple(tuple(e.member for e in self.ready(stage, version)) for stage in range(self.plan.stages))
        return Roster(stages, tuple(e.member for e in self.trainers()))

    def holders(self, version: int) -> Roster:
        """The peers that have a version, those that want to leave too."""
        ready = [e for e in self.peers() if e.holds(version)]
        stages = [self._trusted([e for e in ready if e.member.stage == s]) for s in range(self.plan.stages)]
        return Roster(tuple(tuple(e.member for e in stage) for stage in stages))

    def lack(self, empty: list[int]) -> str:
        """What stages without a ready peer wait for, in words for the person who runs this."""
        deserted = [stage for stage in empty if not self.peers(stage)]
        text = ", ".join(str(stage) for stage in deserted or empty)
        return f"a peer for stage {text}" if deserted else f"the peers of stage {text}, which are loading"

    def place(self, wish: int) -> tuple[int, str]:
        """The stage for a newcomer, and why: its wish, else an empty stage, else the highest load per capacity.

        The load of a stage is its share of the computation (each serves the same microbatches), its capacity the sum
        of its peers' speeds, those still loading included, so that peers that start together spread.
        """
        if wish >= 0:
            return wish, "as asked for"
        costs = self.plan.costs or (1.0,) * self.plan.stages
        loads: list[tuple[float, int]] = []
        for stage in range(self.plan.stages):
            speed = self._speed(stage)
            if speed == 0:
                return stage, "nobody serves it"
            loads.append((costs[stage] / speed, -stage))
        highest = max(loads)
        return -highest[1], f"highest load per capacity ({highest[0]:.3g})"

    def _speed(self, stage: int) -> float:
        found = self._stages[stage]
        if found.speed is None:
            serving = (e.speed for e in found.entries.values() if not e.draining and e.phase is not MemberPhase.BARRED)
            found.speed = sum(serving, 0.0)
        return found.speed

    def homeward(self, version: int) -> list[MemberRecord]:
        """Those who stand in on a stage that others serve by now: they may go back to the one that they asked for."""
        here = [e for e in self.peers() if e.stands_in and e.holds(version)]
        found: list[MemberRecord] = []
        for entry in here:
            left = [e for e in self.ready(entry.member.stage, version) if e not in found]
            if not entry.draining and len(left) > 1:
                found.append(entry)
        return found

    def better_placed(self, version: int, now: float) -> Move | None:
        """The move to be made now, if every stage is served and there are peers that have stayed long enough.

        Whoever is loading counts for the stage that it was granted: waiting for a moment at which nobody is on the way
        would be waiting for ever where peers come all the time. The last one that is ready stays. Of MOVING_PEERS peers
        one may move in a period, and of fewer one too, so that many peers are levelled as fast as few.
        """
        if not all(self.served(stage, version) for stage in range(self.plan.stages)):
            return None
        pace = min(1.0, MOVING_PEERS / (self._ready + len(self._loading)))
        stages: list[list[Server]] = []
        for stage in range(self.plan.stages):
            ready = {e.process for e in self.ready(stage, version)}
            servers: list[Server] = []
            for e in self.peers(stage):
                if e.phase in (MemberPhase.READY, MemberPhase.LOADING) and not e.draining:
                    rested = 0 < e.rebalance_s <= now - e.settled_s and pace * e.rebalance_s <= now - self.moved_s
                    servers.append(Server(e.process, e.speed, rested and e.process in ready and len(ready) > 1))
            stages.append(servers)
        return rebalance(self.plan.costs or (1.0,) * self.plan.stages, stages)

    def spare(self, empty: Iterable[int]) -> MemberRecord | None:
        """A peer that can leave its stage for one that has nobody: from the largest stage of two or more."""
        lost = set(empty)
        best: MemberRecord | None = None
        best_size = 1
        for stage in range(self.plan.stages):
            movable = [e for e in self.peers(stage) if e.movable and not e.draining]
            size = len([e for e in self.peers(stage) if not e.draining])
            if stage not in lost and movable and size > best_size:
                best, best_size = movable[-1], size
        return best


def _coming(entry: MemberRecord) -> bool:
    return entry.phase is MemberPhase.WAITING or (entry.phase is MemberPhase.LOADING and entry.hopeful)
