"""Which version a run goes on from, when nobody has it in memory any more."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.leading.copies import Copies
from swarmflow.core.types import Snapshot


@dataclass(frozen=True, slots=True)
class Decision:
    """version: go on from this one, which is on the own disk. fetch: copy this one there first. Neither: wait.

    reason: what is waited for, in words for the person who runs this.
    """

    reason: str
    version: int | None = None
    fetch: Snapshot | None = None


@dataclass(slots=True)
class Restoring:
    """Looks for the newest version that is whole somewhere. since_s: when it began.

    known: the newest version that was on a disk, as far as the own one tells. A version that is known but not whole is
    waited for: without end where the own disk has nothing, since a run must not begin again while its state may come
    back, and else for wait_s, since the own version costs only the steps after it.
    """

    known: int
    since_s: float
    wait_s: float
    again_s: float = 0.0

    def decide(self, durable: int, copies: Copies, now: float) -> Decision:
        """What to do now. durable: the newest version on the own disk, 0: none."""
        whole, newest = copies.newest_whole(), copies.newest_known()
        if whole is not None and whole.version > durable:
            reason = f"version {whole.version} from the disks of others"
            return Decision(reason, fetch=whole) if now >= self.again_s else Decision(reason)
        self.known = known = max(self.known, newest.version if newest is not None else 0)  # also when its holder leaves
        if known <= durable or (durable > 0 and now - self.since_s >= self.wait_s):
            return Decision(f"version {durable} is the newest there is", durable)
        return Decision(self._lack(known, newest, copies))

    def failed(self, now: float, again_after_s: float) -> None:
        """What was to be fetched did not come: somebody's death, or the own disk."""
        self.again_s = now + again_after_s

    def _lack(self, known: int, newest: Snapshot | None, copies: Copies) -> str:
        lacking: list[str] = []
        if newest is None or newest.version < known:
            lacking.append(f"version {known}, which nobody here holds")
        if newest is not None and (missing := copies.missing(newest)):
            stages = ", ".join(str(stage) for stage in missing)
            lacking.append(f"version {newest.version}, of which nobody here holds stage {stages}")
        return f"{', or '.join(lacking)}: start the peers and trainers that kept it"
