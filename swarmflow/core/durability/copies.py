"""Where copies of committed versions lie, and who is to keep which: as the leader knows and decides it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from swarmflow.core.durability.snapshots import Taken
from swarmflow.core.protocol.actions import Action, Connect, Log, Send
from swarmflow.core.protocol.messages import KeepCopy, Surplus
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import HOLDINGS_MAX, Holding, Member, ProcessId, Roster, Snapshot

COPIES = 2  # of each stage, on the disks of peers
HOLDERS_MAX = 3  # that are named for a copy: if one dies, the next is asked
# Versions on the disks of their peers of which nobody may delete anything yet: HOLDINGS_MAX are believed of a disk.
UNTIDIED_MAX = 4


@dataclass(slots=True)
class _Asked:
    """What a peer was asked to copy, and has not answered yet."""

    snapshot: Snapshot
    stages: set[int]  # that it is to have then
    due_s: float
    late: bool = False  # nobody waits for it any more


@dataclass(slots=True)
class Copies:
    """The disks of the processes present, beside the leader's own.

    One snapshot is spread at a time: a newer one waits until every peer that was asked to copy has answered. Otherwise
    a run that writes checkpoints faster than they travel would never have a whole one. A peer whose disk hangs, or that
    lies, must not hold up all later ones: after a while nobody waits for it, and until it answers it is asked for
    nothing. It has twice as long the next time, since all may be as slow.
    """

    stages: int  # of the run
    steps: int = 1 << 40  # of the run
    patience_s: float = 3600.0  # for a peer that copies, the first time
    _held: dict[Snapshot, dict[ProcessId, set[int]]] = field(init=False, default_factory=dict)
    _where: dict[ProcessId, Member] = field(init=False, default_factory=dict)
    _asked: dict[ProcessId, _Asked] = field(init=False, default_factory=dict)
    _misses: Counter[ProcessId] = field(init=False, default_factory=Counter)  # how often it was late
    _unable: dict[ProcessId, Snapshot] = field(init=False, default_factory=dict)
    _whole: set[Snapshot] = field(init=False, default_factory=set)  # that were whole once, as some holder says
    _sought: dict[Snapshot, dict[ProcessId, set[int]]] = field(init=False, default_factory=dict)  # the stages, of whom
    # The last snapshot of which the peers were told what it makes superfluous, and whether it was spread then.
    _tidied: tuple[Snapshot | None, bool] = field(init=False, default=(None, False))
    untidied: set[int] = field(init=False, default_factory=set)  # versions taken since

    # --- what is known ------------------------------------------------------------------------------------------------

    def record(self, member: Member, copies: Sequence[Holding]) -> bool:
        """Record what lies on a process' disk, and return whether it is news; what cannot be true is left out."""
        before = self._on_disk(member.process)
        self._where[member.process] = member
        self._drop(member.process)
        for holding in copies[:HOLDINGS_MAX]:
            snapshot = holding.snapshot
            if 0 < snapshot.version <= self.steps and len(snapshot.roots) == self.stages:
                stages = {stage for stage in holding.stages if 0 <= stage < self.stages}
                self._held.setdefault(snapshot, {})[member.process] = stages
                if holding.whole:
                    self._whole.add(snapshot)
        return self._on_disk(member.process) != before

    def leave(self, process: ProcessId) -> None:
        """Forget a process that is gone, and its disk."""
        self._drop(process)
        for table in (self._where, self._asked, self._misses, self._unable):
            table.pop(process, None)
        for sought in self._sought.values():
            sought.pop(process, None)

    def newest_known(self) -> Snapshot | None:
        """Return the newest snapshot of which any process holds anything."""
        return max(self._held, default=None)

    def newest_once_whole(self) -> int:
        """Return the newest version of which any process holds a part, and that was whole once; 0: there is none."""
        self._whole &= self._held.keys()
        return max((s.version for s in self._whole), default=0)

    def newest_whole(self) -> Snapshot | None:
        """Return the newest snapshot whose every stage is held."""
        return max((s for s in self._held if not self.missing(s)), default=None)

    def missing(self, snapshot: Snapshot) -> list[int]:
        """Return the stages of a snapshot that no process holds."""
        held = set[int]().union(*self._held.get(snapshot, {}).values())
        return [stage for stage in range(self.stages) if stage not in held]

    def kept_alone(self, snapshot: Snapshot, process: ProcessId, staying: Set[ProcessId]) -> list[int]:
        """Return the stages of a snapshot that this process holds, and none of those that stay."""
        held = self._held.get(snapshot, {}).get(process, ())
        return [stage for stage in sorted(held) if staying.isdisjoint(self._holders(snapshot, stage))]

    def seek(self, peers: Iterable[Member]) -> list[Action]:
        """Ask these peers once for the stages of the newest snapshot that nobody holds; nobody is named to copy from.

        A peer that died between writing its stage and hearing of the snapshot has the file, and cannot claim it.
        """
        snapshot = self.newest_known()
        if snapshot is None or not (missing := self.missing(snapshot)):
            return []
        actions: list[Action] = []
        sought = self._sought.setdefault(snapshot, {})
        for process in (member.process for member in peers):
            stages = sought.setdefault(process, set())
            fresh = [stage for stage in missing if stage not in stages]
            stages.update(fresh)
            actions += [Send(process, KeepCopy(snapshot, (stage,), ((),), whole=False)) for stage in fresh]
        return actions

    def roster(self, snapshot: Snapshot) -> Roster:
        """Return the holders of each stage of a snapshot, in the order of their ids."""
        stages = (self._holders(snapshot, stage) for stage in range(self.stages))
        return Roster(tuple(tuple(self._where[process] for process in holders) for holders in stages))

    def take(self, taken: Taken) -> list[Action]:
        """Record a snapshot that lies on the disks of its own stages' peers, and tell them what they have."""
        snapshot = taken.snapshot
        self.untidied.add(snapshot.version)
        for writer in taken.writers:
            self._where[writer.process] = writer
            self._held.setdefault(snapshot, {}).setdefault(writer.process, set()).add(writer.stage)
        return [
            Send(writer.process, KeepCopy(snapshot, (writer.stage,), ((writer,),), whole=False))
            for writer in taken.writers
        ]

    @property
    def crowded(self) -> bool:
        """Whether the next version has to wait for a copy: disks fill up where they come more slowly than versions."""
        return bool(self._awaited) and len(self.untidied) >= UNTIDIED_MAX

    @property
    def spreading(self) -> int:
        """The oldest version that is being copied from the leader now, -1: none."""
        return min((asked.snapshot.version for asked in self._awaited), default=-1)

    @property
    def _awaited(self) -> list[_Asked]:
        return [asked for asked in self._asked.values() if not asked.late]

    def _holders(self, snapshot: Snapshot, stage: int) -> list[ProcessId]:
        return sorted(process for process, stages in self._held.get(snapshot, {}).items() if stage in stages)

    def _on_disk(self, process: ProcessId) -> dict[Snapshot, set[int]]:
        return {snapshot: holders[process] for snapshot, holders in self._held.items() if process in holders}

    def _drop(self, process: ProcessId) -> None:
        for snapshot, holders in list(self._held.items()):
            holders.pop(process, None)
            if not holders:
                del self._held[snapshot]

    # --- who keeps what -----------------------------------------------------------------------------------------------

    def spread(self, snapshot: Snapshot, leader: Member | None, keepers: Iterable[Member], now: float) -> list[Action]:
        """Ask for the copies of a snapshot that are missing on the disks of these peers. leader: if it has all of it.

        Each stage should lie with two peers of other stages, so that it survives the loss of its own: with one first,
        and when all stages do, with another one. Where there are not that many, its own peers keep it too, which still
        helps a run whose every process ends. Those who hold least of the snapshot are asked first.
        """
        if any(asked.snapshot != snapshot for asked in self._awaited):
            return []
        unable = {process for process, refused in self._unable.items() if refused == snapshot}
        unable |= {process for process, asked in self._asked.items() if asked.late}
        able = {member.process: member for member in sorted(keepers) if member.process not in unable}
        wanted = self._wanted(snapshot, 1, leader, able)
        if not wanted and not self._awaited:
            wanted = self._wanted(snapshot, COPIES, leader, able)
        actions: list[Action] = []
        for process, stages in sorted(wanted.items()):
            due_s = now + self.patience_s * 2.0 ** self._misses[process]
            self._asked[process] = _Asked(snapshot, self._has(process, snapshot) | stages.keys(), due_s)
            message = KeepCopy(snapshot, tuple(stages), tuple(stages.values()), whole=leader is not None)
            actions += [Connect((able[process],)), Send(process, message)]
        return actions

    def _wanted(
        self, snapshot: Snapshot, copies: int, leader: Member | None, able: dict[ProcessId, Member]
    ) -> dict[ProcessId, dict[int, tuple[Member, ...]]]:
        """Return which stages whom is to copy from whom, so that there are so many copies of each."""
        load = {process: self._has(process, snapshot) for process in able}
        given: Counter[ProcessId] = Counter()
        wanted: dict[ProcessId, dict[int, tuple[Member, ...]]] = {}
        mates = Counter(member.stage for member in able.values())
        for stage in range(self.stages):
            while (chosen := self._next_keeper(stage, copies, able, load, mates)) is not None:
                load[chosen].add(stage)
                if holders := self._to_ask(snapshot, stage, leader, given):
                    wanted.setdefault(chosen, {})[stage] = holders
        return wanted

    def _to_ask(
        self, snapshot: Snapshot, stage: int, leader: Member | None, given: Counter[ProcessId]
    ) -> tuple[Member, ...]:
        """Return whom to ask for a stage of a snapshot: first who gives least, the leader last. given: by each."""
        holders = sorted(self._holders(snapshot, stage), key=lambda process: (given[process], process))[:HOLDERS_MAX]
        others = [] if leader is None or leader.process in holders else [leader]
        named = (*(self._where[process] for process in holders), *others)
        given.update(member.process for member in named[:1])
        return named

    def _next_keeper(
        self,
        stage: int,
        copies: int,
        able: dict[ProcessId, Member],
        load: dict[ProcessId, set[int]],
        mates: Counter[int],
    ) -> ProcessId | None:
        """Who is to hold one more copy of a stage; None: there are enough, or nobody can.

        load: what each holds. mates: how many keep copies, by the stage that they serve.
        """
        holding = [able[process].stage for process in able if stage in load[process]]
        free = [member for process, member in able.items() if stage not in load[process]]
        others = [member for member in free if member.stage != stage]
        if sum(serves != stage for serves in holding) >= copies or (len(holding) >= copies and not others):
            return None

        def reluctance(member: Member) -> tuple[bool, int, int, int, int, int, ProcessId]:
            """Rank a peer: copies with peers of one stage may be lost together, and each should hold few.

            Peers of a larger stage go first: they have fewer tensors each, and so more of their links for copies. But
            before them all those that have answered in time so far.
            """
            offset, alike = (member.stage - stage) % self.stages, holding.count(member.stage)
            misses, mine = self._misses[member.process], len(load[member.process])
            return member.stage == stage, misses, mine, alike, -mates[member.stage], offset, member.process

        return min(free, key=reluctance).process if free else None

    def kept(self, process: ProcessId, failed: str, saving: int | None, newest: int) -> list[Action]:
        """A process has copied what it was asked for, as is recorded, or could not. saving, newest: see `tidied`."""
        asked = self._asked.get(process)
        if asked is None:
            return []
        snapshot = asked.snapshot
        if failed or asked.stages <= self._held.get(snapshot, {}).get(process, set()):
            del self._asked[process]
            if failed:
                self._unable[process] = snapshot
        if asked.late or not (surplus := self.tidied(snapshot, saving, newest, spread=True)):
            return []
        self._whole = (self._whole & self._held.keys()) | {snapshot}
        text = f"version {snapshot.version} is on the disks of others too"
        return [Log("info", text, EventKind.CHECKPOINT), *surplus]

    def overdue(self, now: float) -> list[Action]:
        """Wait no longer for peers that have not answered in time."""
        late = {p: asked for p, asked in sorted(self._asked.items()) if now > asked.due_s and not asked.late}
        logs: list[Action] = []
        for process, asked in late.items():
            asked.late = True
            self._misses[process] += 1
            text = f"{process} has not answered whether it has copied version {asked.snapshot.version}: others go on"
            logs.append(Log("warning", text, EventKind.CHECKPOINT, process))
        return logs

    def slept(self, seconds: float) -> None:
        """Do not count the time in which the leader slept: it received no answer."""
        for asked in self._asked.values():
            asked.due_s += seconds

    def tidied(self, snapshot: Snapshot, saving: int | None, newest: int, spread: bool = False) -> list[Action]:
        """Tell the peers what of earlier versions they may delete, once for a snapshot that nobody is to copy any more.

        Two generations of what is whole stay on disk, with all between them. saving: a version that stays too, as the
        leader copies it; None: it copies none. newest: the newest one that peers have written; 0: they have none.
        spread: others than the peers of its own stages have it too, so that the run will not begin before it any more.
        """
        if self._awaited or self.missing(snapshot) or self._tidied in ((snapshot, True), (snapshot, spread)):
            return []
        self._tidied = snapshot, spread
        self.untidied = {version for version in self.untidied if version > snapshot.version}
        earlier = (s for s in self._held if s < snapshot)
        before = max((s.version for s in earlier if not self.missing(s)), default=snapshot.version)
        oldest = before if saving is None else min(before, saving)
        surplus = Surplus(oldest, max(snapshot.version, newest), snapshot.version if spread else 0)
        return [Send(peer, surplus) for peer, where in sorted(self._where.items()) if where.stage >= 0]

    def _has(self, process: ProcessId, snapshot: Snapshot) -> set[int]:
        """Return the stages of a snapshot that a process holds or is copying."""
        held, asked = self._held.get(snapshot, {}).get(process, set()), self._asked.get(process)
        return held | (asked.stages if asked is not None and asked.snapshot == snapshot else set())
