"""Which version of the run is safe on disk, which one is on its way there, and who else has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from swarmflow.core.actions import Action, Connect, Log, Saved, Send, WriteCheckpoint
from swarmflow.core.events import CheckpointWritten
from swarmflow.core.leading.copies import Copies
from swarmflow.core.leading.duties import Duty
from swarmflow.core.messages import Keep
from swarmflow.core.types import Member, Roster, Snapshot

ASKED_S = 300.0  # after which who asked for a version on disk is told that there is none


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody waits for this version, or a later one, to be on disk."""

    version: int
    since_s: float


@dataclass(slots=True)
class Safekeeping:
    """durable: the newest version that is complete on disk, the leader's own. saving: the one being written.

    retry_s: after which the last version is written once more when it failed although nobody is known to have died.
    copies: the disks of everybody else. known: the newest version that was on any disk, as far as is known here.
    digests: of the files of the durable version, empty: there is none. parts: of states that came, all told;
    copied: those of the version being written are all here. asked: who waits for a version, by its number; failure:
    why the last one that was to be written was not. turn: how often nothing came any more, after which others are
    asked first.
    """

    durable: int
    retry_s: float
    copies: Copies
    known: int
    digests: tuple[str, ...] = ()
    saving: int | None = None
    again_s: float | None = None
    duty: Duty = field(default_factory=Duty)
    parts: int = 0
    copied: bool = False
    turn: int = 0
    asked: dict[int, Asked] = field(default_factory=dict)
    failure: str = ""
    _disturbed: bool = False
    _waited: bool = False

    def write(self, version: int, stages: Roster, last: bool) -> list[Action]:
        """Begin to write a version, held by these peers, unless one is being written already. last: the model too."""
        if self.saving is not None:
            return []
        self._begin(version)
        return [WriteCheckpoint(version, self._turned(stages), last, spare=self.copies.spreading)]

    def fetch(self, snapshot: Snapshot) -> list[Action]:
        """Begin to copy a snapshot from the disks of others, unless something is being written already."""
        if self.saving is not None:
            return []
        self._begin(snapshot.version)
        roster = self._turned(self.copies.roster(snapshot))
        connect = Connect(tuple(dict.fromkeys(roster.members())))
        return [connect, WriteCheckpoint(snapshot.version, roster, digests=snapshot.digests)]

    def _begin(self, version: int) -> None:
        self.saving, self.copied, self._disturbed = version, False, False

    def _turned(self, holders: Roster) -> Roster:
        stages = [members[self.turn % len(members) :] + members[: self.turn % len(members)] if members else ()
                  for members in holders.stages]  # fmt: skip
        return Roster(tuple(stages), holders.trainers)

    def later(self, version: int, begun: bool) -> bool:
        """Whether those who are there hold a later version than this one, which the run is to begin with.

        begun: it is at work already. Then only a version that is whole is worth to stop it, unless it began anew.
        """
        whole, newest = self.copies.newest_whole(), self.copies.newest_known()
        if whole is not None and whole.version > version:
            return True
        return newest is not None and newest.version > max(version, self.known) and not (begun and version > 0)

    def spread(self, me: Member, keepers: Iterable[Member]) -> list[Action]:
        """Have these peers copy what they should hold of the durable version, and do not yet."""
        return self.copies.spread(Snapshot(self.durable, self.digests), me, keepers) if self.digests else []

    def share(self, me: Member, trainers: Iterable[Member]) -> list[Action]:
        """Have the other trainers copy the whole durable version: each of them may have to lead from it."""
        snapshot, stages = Snapshot(self.durable, self.digests), tuple(range(self.copies.stages))
        return [Send(m.process, Keep(me, snapshot, stages)) for m in trainers if m.process != me.process]

    def disturbed(self) -> None:
        """A process went: what is being written may miss its part."""
        self._disturbed = True

    def written(self, event: CheckpointWritten) -> Log:
        """It is written, or could not be."""
        if event.version == self.saving:  # else it was begun for a former leader
            self.saving = None
        if event.ok and event.version >= self.durable:
            self.durable, self.digests = event.version, event.digests
            self.known = max(self.known, event.version)
        if event.ok:
            return Log("info", f"version {event.version} is on disk")
        self.failure = event.reason
        return Log("warning", f"version {event.version} could not be written: {event.reason}")

    def answers(self, now: float) -> list[Action]:
        """Tell those who asked for a version that it is on disk, or that it could not be brought there in time."""
        told: list[Action] = []
        for number, asked in list(self.asked.items()):
            if self.durable >= asked.version:
                told.append(Saved(number, self.durable))
            elif now - asked.since_s >= ASKED_S:
                told.append(Saved(number, self.durable, f"version {asked.version} is on no disk yet: {self.failure}"))
            else:
                continue
            del self.asked[number]
        return told

    def try_last_again(self, now: float) -> bool:
        """The last version failed: was it a peer's death, perhaps not known yet, or the disk? False: the disk."""
        if not self._disturbed and self._waited:
            return False
        self._waited = not self._disturbed
        self.again_s = now + self.retry_s if self._waited else now
        return True

    def went_back(self) -> None:
        """The run is at an earlier version: nothing is written for the last time."""
        self.again_s, self._waited = None, False

    def due_again(self, now: float) -> bool:
        """Whether the last version is to be written once more now."""
        return self.saving is None and self.again_s is not None and now >= self.again_s
