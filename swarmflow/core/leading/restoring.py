"""Which version a run goes on from, when no peer serves it any more."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from swarmflow.core.leading.copies import Copies
from swarmflow.core.leading.memories import NOTHING, Former, Memories, Remembered
from swarmflow.core.types import Snapshot

GRACE_S = 5.0  # for those who may hold a still later version than the one that is whole in memory


@dataclass(frozen=True, slots=True)
class Decision:
    """version: go on from this one, which is on the own disk, or in the memory of peers (memory). fetch: copy it to the
    own disk first. Neither: wait.

    reason: what is waited for, in words for the person who runs this.
    """

    reason: str
    version: int | None = None
    fetch: Snapshot | None = None
    memory: Remembered | None = None


@dataclass(slots=True)
class Restoring:
    """Looks for the newest version that is whole somewhere. since_s: when it began.

    known: the newest version that was on a disk, as far as the own one tells. A version that is known but not whole is
    waited for: without end where the own disk has nothing, since a run must not begin again while its state may come
    back, and else for wait_s, since the own version costs only the steps after it. former: what is known of the run
    before; peers that have outlived its trainers may hold a later version in memory than any disk, and are waited for,
    for memory_s at most, until all that were known are there again.
    """

    known: int
    since_s: float
    wait_s: float
    former: Former = NOTHING
    memory_s: float = 0.0
    again_s: float = 0.0
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
        self.known = known = max(self.known, newest.version if newest is not None else 0)  # also when its holder leaves
        if known <= durable or (durable > 0 and now - self.since_s >= self.wait_s):
            return Decision(f"version {durable} is the newest there is", durable)
        return Decision(self._lack(known, newest, copies))

    def _in_memory(self, on_disks: int, memories: Memories, there: Set[str], now: float) -> Decision | None:
        """What to do about versions that are later than those on disks; None: nothing, there is none to come."""
        reached = max(self.former.version, memories.newest())
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
