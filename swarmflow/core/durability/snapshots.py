"""The version whose stages their own peers write to their disks, while the run goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.messages import SnapshotTaken, TakeSnapshot
from swarmflow.core.protocol.types import Member, ProcessId, Roster, Snapshot

WRITERS = 3  # of each stage: two may die, and three uplinks give the copies in a third of the time


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that is whole on the disks of its own stages' peers."""

    snapshot: Snapshot
    writers: tuple[Member, ...]


@dataclass(slots=True)
class Snapshots:
    """At most one version at a time: the state of a version is in memory until the next step is committed.

    A peer applies the next update only after it has written, and answers before it reports the update. So what is not
    answered when the step is committed never comes.
    """

    stages: int  # of the run
    version: int | None = field(init=False, default=None)  # being written
    taken: Snapshot | None = field(init=False, default=None)  # the last one that was, as a whole
    _awaited: dict[ProcessId, Member] = field(init=False, default_factory=dict)
    _written: dict[ProcessId, tuple[Member, str]] = field(init=False, default_factory=dict)  # with the root
    _unable: set[ProcessId] = field(init=False, default_factory=set)

    def begin(self, version: int, holders: Roster, keepers: Iterable[Member]) -> list[Action]:
        """Have each stage's peers write this version. Nothing, where a stage has no peer that can.

        holders: of this version, in memory. keepers: those who write to a folder that outlives their process.
        """
        lasting = {member.process for member in keepers}
        writers: list[Member] = []
        for stage in holders.stages:
            able = (member for member in stage if member.process not in self._unable)
            writers += sorted(able, key=lambda member: (member.process not in lasting, member))[:WRITERS]
        if len({member.stage for member in writers}) < self.stages:
            self._unable.clear()  # their disks may have room again when the next version is due
            return []
        self.version, self._written = version, {}
        self._awaited = {member.process: member for member in writers}
        return [Send(process, TakeSnapshot(version)) for process in self._awaited]

    def answered(self, process: ProcessId, message: SnapshotTaken) -> None:
        """Record the answer of a peer."""
        member = self._awaited.get(process)
        if member is None or (message.version, message.stage) != (self.version, member.stage):
            return
        del self._awaited[process]
        if message.failed or not message.root:
            self._unable.add(process)
        else:
            self._written[process] = member, message.root

    def leave(self, process: ProcessId) -> None:
        """Forget a peer that is gone, and its disk."""
        self._unable.discard(process)
        self._awaited.pop(process, None)
        self._written.pop(process, None)

    @property
    def complete(self) -> bool:
        """Whether all who were asked for a version have answered, or are gone."""
        return self.version is not None and not self._awaited

    def end(self, certified: Snapshot | None) -> Taken | None:
        """End the version with the answers that are here; None: a stage of it is on no disk.

        certified: the version with its roots; None: its stages did not agree on them.
        """
        assert self.version is not None, "a version is being written"
        self.version = None
        self._awaited.clear()
        if certified is None:
            return None
        writers = tuple(member for member, root in self._written.values() if root == certified.roots[member.stage])
        if len({member.stage for member in writers}) < self.stages:
            return None
        self.taken = certified
        return Taken(certified, writers)

    @property
    def newest(self) -> int:
        """The newest version of which anything is, or was, written."""
        return max(self.version or 0, self.taken.version if self.taken is not None else 0)

    def drop(self) -> None:
        """The run is at an earlier version: what was written after that one is of no use."""
        self.version = self.taken = None
        self._awaited.clear()
