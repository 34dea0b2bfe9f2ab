"""Which version a run goes on from, when no peer serves it any more."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from swarmflow.core.durability.copies import Copies
from swarmflow.core.durability.memories import NOTHING, Former, Memories, Remembered
from swarmflow.core.protocol.types import Snapshot

GRACE_S = 5.0  # for those who may hold a still later version than the one that is whole in memory


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about the version to go on from; with neither a version nor a snapshot: wait."""

    reason: str  # what is waited for, as a person reads it
    version: int | None = None  # to go on from: it is on the leader's own disk, or in the memory of peers
    fetch: Snapshot | None = None  # to be copied to the leader's own disk first
    memory: Remembered | None = None  # of the version, where peers hold it


@dataclass(slots=True)
class Restoring:
    """A search for the newest version that is whole somewhere.

    A version that is known but not whole is waited for. Where the own disk has nothing, without end: a run must not
    begin again while its state may come back. Else for a while: the own version costs only the steps after it; and a
    version that was on the disks of its own stages' peers alone is lost with them, as that of any other step. Peers
    that outlived all trainers may hold a later version in memory than any disk. They are waited for until all that took
    part then are present again.
    """

    known: int  # the newest version that was on a disk, as far as the own one tells
    since_s: float  # when the search began
    wait_s: float  # for disks, where the own one has a version
    former: Former = NOTHING  # what is known of the run before
    memory_s: float = 0.0  # for peers with a version in memory
    again_s: float = 0.0
    _reached: int = 0  # that anybody held in memory; else a holder that comes and goes would begin the search anew
    _found: Remembered | None = None
    _found_s: float = 0.0

    def decide(
        self, durable: int, copies: Copies, now: float, memories: Memories | None = None, there: Set[str] = frozenset()
    ) -> Decision:
        """What to do now. durable: the newest version on the own disk, 0: none. there: names of those who are."""
        whole, newest = copies.newest_whole(), copies.newest_known()
        on_disks = max(durable, whole.version if whole is not None else 0)
        decision = self._in_memory(on_disks, memories, there, now) if memories is not None else None
        if decision is not None:
            return decision
        if whole is not None and whole.version > durable:
            reason = f"version {whole.version} from the disks of others"
            return Decision(reason, fetch=whole) if now >= self.again_s else Decision(reason)
        self.known = max(self.known, copies.newest_once_whole())  # also when its holder leaves
        known = max(self.known, newest.version if newest is not None else 0)
        ends = durable > 0 or self.known == 0
        if known <= durable or (ends and now - self.since_s >= self.wait_s):
            return Decision(f"version {durable} is the newest there is", durable)
        return Decision(self._lack(known, newest, copies))

    def _in_memory(self, on_disks: int, memories: Memories, there: Set[str], now: float) -> Decision | None:
        """What to do about versions that are later than those on disks; None: nothing, there is none to come."""
        self._reached = reached = max(self._reached, self.former.version, memories.newest())
        if reached <= on_disks:
            return None
        all_there = bool(self.former.peers) and self.former.peers <= there
        over = all_there or now - self.since_s >= self.memory_s
        found = memories.newest_whole()
        if found is None or found.version <= on_disks:
            if not over:
                wait = f"{self.memory_s:.0f} s at most"
                return Decision(f"the peers that may hold version {reached} in memory, {wait}")
            memories.given_up = reached
            return None
        if self._found is None or (self._found.version, self._found.name) != (found.version, found.name):
            self._found_s = now
        self._found = found
        reason = f"version {found.version} from the memory of peers"
        if over or now - self._found_s >= GRACE_S:
            return Decision(reason, found.version, memory=found)
        return Decision(reason)

    def failed(self, now: float, again_after_s: float) -> None:
        """Try again after a while: a fetch failed, by the death of a process or by the leader's own disk."""
        self.again_s = now + again_after_s

    def _lack(self, known: int, newest: Snapshot | None, copies: Copies) -> str:
        lacking: list[str] = []
        if newest is None or newest.version < known:
            lacking.append(f"version {known}, which nobody here holds")
        if newest is not None and (missing := copies.missing(newest)):
            stages = ", ".join(str(stage) for stage in missing)
            lacking.append(f"version {newest.version}, of which nobody here holds stage {stages}")
        return f"{', or '.join(lacking)}: start the peers and trainers that kept it"
