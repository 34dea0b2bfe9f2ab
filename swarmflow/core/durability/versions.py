"""Which version of the run is safe on disk, which one is on its way there, and who else has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from swarmflow.core.durability.copies import COPIES, Copies
from swarmflow.core.durability.snapshots import Snapshots
from swarmflow.core.membership.duties import Duty
from swarmflow.core.protocol.actions import Abandon, Action, Connect, Log, Saved, Send, WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten, DiskChanged
from swarmflow.core.protocol.messages import KeepCopy
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import Member, Roster, Snapshot
from swarmflow.core.transitions import Transitions

RETRY_S_MAX = 64.0
NO_DISK = "a disk that takes a copy"
ASKED_S = 300.0  # after which who asked for a version on disk is told that there is none


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """A request to be answered when this version, or a later one, is on disk."""

    version: int
    since_s: float


class WriteState(StrEnum):
    """The write of a version to the leader's disk."""

    IDLE = "idle"  # nothing is being written
    COPYING = "copying"  # the states of the stages are being copied from peers or their disks
    WRITING = "writing"  # all of them are here, and not on disk yet


_ENDS = "it failed, or the run went back"
WRITE = Transitions(
    "write",
    WriteState.IDLE,
    {
        WriteState.IDLE: {WriteState.COPYING: "a version is due or asked for"},
        WriteState.COPYING: {WriteState.WRITING: "the states of all stages are here", WriteState.IDLE: _ENDS},
        WriteState.WRITING: {WriteState.IDLE: "the version is on disk, or could not be written"},
    },
)


@dataclass(slots=True)
class Durability:
    """Which versions are safe on disk, and the one that is on its way there."""

    durable: int  # the newest version that is complete on the leader's own disk
    retry_s: float  # after which a failed write is tried again, when no process is known to have died
    copies: Copies  # the disks of the other processes
    snapshots: Snapshots  # the version that its peers write to their own disks
    known: int  # the newest version that was on any disk, as far as is known here
    roots: tuple[str, ...] = ()  # of the stages of the durable version, empty: there is none
    every: int = 0  # steps between two checkpoints, 0: there are none
    # A whole version on the leader's own disk of which it is not known whether it is of the run's present history.
    doubtful: Snapshot | None = field(init=False, default=None)
    state: WriteState = field(init=False, default=WRITE.initial)
    saving: int | None = field(init=False, default=None)  # the version being written
    failure: str = field(init=False, default="")  # why the last write failed, empty: it did not
    again_s: float | None = field(init=False, default=None)  # when that is tried again
    duty: Duty = field(init=False, default_factory=Duty)
    parts: int = field(init=False, default=0)  # of states that have arrived, in all writes
    turn: int = field(init=False, default=0)  # writes that stood still: others are asked first after each
    asked: dict[int, SaveRequest] = field(init=False, default_factory=dict)  # by the number of the request
    number: int = field(init=False, default=0)  # of the last write, unlike any of an earlier leadership
    last: bool = field(init=False, default=False)  # the model is asked for with it
    # Whether a write that waits for the version's roots is to be the last one; None: none waits.
    wanted: bool | None = field(init=False, default=None)
    live: bool = field(init=False, default=False)  # it is copied from the memory of peers, and not from disks
    _next_retry_s: float = field(init=False, default=0.0)
    _disturbed: bool = field(init=False, default=False)

    @property
    def copied(self) -> bool:
        """Whether the states of the version being written are all here."""
        return self.state is WriteState.WRITING

    def holds_commit(self, version: int) -> bool:
        """Return whether peers have to stay at a version, since it is copied from their memory."""
        return self.saving == version and self.live and not self.copied

    def arrived(self, version: int) -> None:
        """Count a part of a state that has arrived. version: the one whose states are all here now, -1: none."""
        self.parts += 1
        if version == self.saving and self.state is WriteState.COPYING:
            self._move(WriteState.WRITING)

    def _move(self, to: WriteState) -> None:
        self.state = WRITE.move(self.state, to)
        assert (self.saving is None) == (to is WriteState.IDLE), f"{to} with version {self.saving}"

    def _end(self) -> None:
        self.saving = None
        if self.state is not WriteState.IDLE:
            self._move(WriteState.IDLE)

    def write(self, version: int, stages: Roster, last: bool, roots: tuple[str, ...]) -> list[Action]:
        """Begin to copy a version from the memory of these peers, unless one is being written. last: the model too.

        roots: of its stages; empty: a stage has lost its peers, so that the write will fail.

        An earlier one, which is copied from disks, has to give way: it may take hours.
        """
        behind = self.saving is not None and self.saving < version and not (self.live or self.copied)
        if self.saving is not None and not behind:
            return []
        given_up: list[Action] = [Abandon("save")] if behind else []
        self._end()
        self._begin(version, last)
        self.live = True
        spare = self.copies.spreading
        return [*given_up, WriteCheckpoint(version, self._turned(stages), last, roots, spare, self.number)]

    def fetch(self, snapshot: Snapshot) -> list[Action]:
        """Begin to copy a snapshot from the disks of others, unless something is being written already."""
        if self.saving is not None:
            return []
        self._begin(snapshot.version)
        self.live = False
        roster = self._turned(self.copies.roster(snapshot))
        connect = Connect(tuple(dict.fromkeys(roster.peers)))
        spare = self.copies.spreading
        write = WriteCheckpoint(snapshot.version, roster, roots=snapshot.roots, spare=spare, number=self.number)
        return [connect, write]

    def catch_up(self, version: int, keepers: int, now: float) -> list[Action]:
        """Copy what the peers have written of the run's version, or one before it, to the own disk.

        Those who have written it give it to the disks of others first: so it is safe sooner. They do so for as long as
        another version takes to be due; not where the own disk has nothing yet and others are few, since a run that
        loses all of them then could not go on. keepers: how many peers keep copies.
        """
        taken, waits = self.snapshots.taken, self.again_s is not None and now < self.again_s
        if taken is None or waits or not self.durable < taken.version <= version or self.copies.missing(taken):
            return []
        given_to_others = self.copies.spreading == taken.version and version - taken.version < self.every
        may_wait = self.durable > 0 or keepers > COPIES * self.copies.stages
        return [] if given_to_others and may_wait else self.fetch(taken)

    def _begin(self, version: int, last: bool = False) -> None:
        self.saving, self.last, self.wanted, self._disturbed = version, last, None, False
        self.number += 1
        self._move(WriteState.COPYING)

    def _turned(self, holders: Roster) -> Roster:
        stages = [
            members[self.turn % len(members) :] + members[: self.turn % len(members)] if members else ()
            for members in holders.stages
        ]
        return Roster(tuple(stages), holders.trainers)

    def later(self, version: int, begun: bool) -> bool:
        """Whether those who are there hold a later version than this one, which the run is to begin with.

        begun: it is at work already. Then only a version that is whole is worth to stop it, unless it began anew.
        """
        whole, newest = self.copies.newest_whole(), self.copies.newest_known()
        if whole is not None and whole.version > version:
            return True
        return newest is not None and newest.version > max(version, self.known) and not (begun and version > 0)

    def spread(self, me: Member, keepers: Iterable[Member], now: float) -> list[Action]:
        """Have these peers copy what they should hold of the durable version, and do not yet.

        What the peers have written is spread from their disks. Where others hold a later one, the own disk has lost it
        or never had it: an earlier one must not replace it. Where there is nobody to copy anything, as with one peer,
        earlier versions are deleted at once.
        """
        snapshot: Snapshot | None = durable_snapshot(self)
        leader: Member | None = me
        if self.snapshots.taken is not None and self.snapshots.taken.version > self.durable:
            snapshot, leader = self.snapshots.taken, None
        elif (whole := self.copies.newest_whole()) is not None and whole.version > self.durable:
            return []
        if snapshot is None:
            return []
        return self.copies.spread(snapshot, leader, keepers, now) or self.copies.tidied(snapshot, *self.in_use)

    @property
    def in_use(self) -> tuple[int | None, int]:
        """The versions that others have to keep on their disks: which is copied (None: none is), which is written."""
        return self.saving, self.snapshots.newest

    def disturbed(self) -> None:
        """Record a death: what is being written may lack a part."""
        self._disturbed = True

    def written(self, event: CheckpointWritten, now: float) -> list[Action]:
        """Record the end of a write; one that failed is tried again, and reported once for each reason."""
        self._end()
        if event.ok and event.version >= self.durable:
            self.durable, self.roots, self.doubtful = event.version, event.roots, None
            self.known = max(self.known, event.version)
        before, self.failure = self.failure, event.reason if not (event.ok and event.exported) else ""
        if not self.failure:
            self.again_s, self._next_retry_s = None, 0.0
            return [Log("info", f"version {event.version} is on disk", EventKind.CHECKPOINT)]
        self._retry(event, now)
        if event.ok:
            text = f"version {event.version} is on disk, but: {event.reason}"
            return [Log("warning", text, EventKind.CHECKPOINT)] * (before == "")
        alike = _without_numbers(before) == _without_numbers(self.failure)
        text = f"version {event.version} could not be written: {event.reason}"
        return [Log("warning", text, EventKind.CHECKPOINT)] * (not alike)

    def answers(self, now: float) -> list[Action]:
        """Answer requests for a version that is on disk, or could not be written in time."""
        actions: list[Action] = []
        for number, asked in list(self.asked.items()):
            if self.durable >= asked.version:
                actions.append(Saved(number, self.durable))
            elif now - asked.since_s >= ASKED_S:
                actions.append(
                    Saved(number, self.durable, f"version {asked.version} is on no disk yet: {self.trouble}")
                )
            else:
                continue
            del self.asked[number]
        return actions

    def _retry(self, event: CheckpointWritten, now: float) -> None:
        """Set when to try again: at once after a death, else after a while, which doubles unless the disk is full."""
        cheap = event.space is not None and event.space.free_bytes < event.space.needed_bytes
        wait_s = self.retry_s if cheap else min(RETRY_S_MAX, max(self.retry_s, 2 * self._next_retry_s))
        self._next_retry_s = 0.0 if self._disturbed else wait_s
        self.again_s = now if self._disturbed else now + wait_s

    def lost(self, event: DiskChanged, me: Member) -> None:
        """Record a loss on the leader's own disk; what is left there counts like others' copies."""
        if event.version > self.durable:  # of another history, which lay there beside what is lost
            self.durable, self.roots, self.doubtful = 0, (), Snapshot(event.version, event.roots)
        else:
            self.durable, self.roots, self.doubtful = event.version, event.roots, None
        self.copies.record(me, event.parts)

    @property
    def landing(self) -> int:
        """The version that is all here, and not on disk yet; -1: there is none, or the disk takes too long."""
        return self.saving if self.saving is not None and self.copied and not self.duty.misses else -1

    @property
    def trouble(self) -> str:
        """Why nothing reaches the disk: the last write failed, or the current one does not end. Empty: neither."""
        hangs = self.saving is not None and self.copied and self.duty.misses > 0
        return self.failure or (f"the write of version {self.saving} does not end" if hangs else "")

    def went_back(self) -> list[Action]:
        """The run is at an earlier version: nothing is written any more of those after it.

        The later ones will be made anew, with other numbers unless they add up exactly: what was begun of the former
        history must not be taken for theirs when it is done.
        """
        self.failure, self.again_s, self._next_retry_s, self.wanted = "", None, 0.0, None
        self.snapshots.drop()
        self.copies.untidied.clear()
        if self.saving is None:
            return []
        self._end()
        return [Abandon("save")]

    def due(self, version: int) -> bool:
        """Return whether a version is to be written: its turn has come, or that of one that failed."""
        newest, taken = self.durable, self.snapshots.taken
        if taken is not None and not self.copies.missing(taken):
            newest = max(newest, taken.version)
        return bool(self.every) and version > newest and (version % self.every == 0 or version - newest >= self.every)

    def due_again(self, now: float) -> bool:
        """Return whether a failed write is to be tried again now."""
        return self.saving is None and self.again_s is not None and now >= self.again_s

    def kept(self, version: int) -> int:
        """Return the newest version, this one at most, that is whole on any disks."""
        whole = self.copies.newest_whole()
        others = whole.version if whole is not None and whole.version <= version else 0
        return max(self.durable, others)

    def holds_up(self, version: int) -> str:
        """Return why no step may be opened at a version: what no disk keeps would be lost. Empty: it may be."""
        if not self.trouble or not self.every or version - (kept := self.kept(version)) <= self.every:
            return ""
        return f"{NO_DISK} of version {version} (the newest one is of version {kept}): {self.trouble}"


def shared(safe: Durability, me: Member, trainers: Iterable[Member]) -> list[Action]:
    """Have the other trainers copy the whole durable version: each of them may have to lead from it."""
    snapshot, stages = Snapshot(safe.durable, safe.roots), tuple(range(safe.copies.stages))
    copy = KeepCopy(snapshot, stages, ((me,),) * len(stages))
    return [Send(member.process, copy) for member in trainers if member.process != me.process]


def durable_snapshot(safe: Durability) -> Snapshot | None:
    """Return the durable version; None: the one that the run begins with."""
    return Snapshot(safe.durable, safe.roots) if safe.roots else None


def _without_numbers(text: str) -> str:
    """Return a text without its digits: the free bytes in it change all the time."""
    return "".join(letter for letter in text if not letter.isdigit())
