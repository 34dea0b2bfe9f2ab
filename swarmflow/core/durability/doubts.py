"""A version on the disk of a trainer that takes over may be of another history of the run than the present one.

The run may have gone back while the trainer was away, and have made a version of that number anew, or be about to. A
stage of one history beside a stage of another would be a state that no process has ever learnt.
"""

from __future__ import annotations

from swarmflow.core.durability.versions import Durability
from swarmflow.core.protocol.types import Snapshot


def doubt(safe: Durability, version: int) -> None:
    """Do not count what is on the own disk, unless it is of an earlier version than this one, the run's."""
    if safe.durable >= version and safe.roots:
        safe.doubtful = Snapshot(safe.durable, safe.roots)
        safe.durable, safe.roots = 0, ()


def certify(safe: Durability, snapshot: Snapshot) -> None:
    """Count it again if the run's stages agree on these roots of that version."""
    if snapshot == safe.doubtful and snapshot.version >= safe.durable:
        _count(safe)


def fallback(safe: Durability) -> int:
    """Return the version to which the run would go back."""
    return safe.doubtful.version if safe.durable == 0 and safe.doubtful is not None else safe.durable


def go_back(safe: Durability) -> int:
    """Go back: count that of the other history, which is whole, where there is no other. Return the version."""
    if safe.durable == 0:
        _count(safe)
    return safe.durable


def _count(safe: Durability) -> None:
    if safe.doubtful is not None:
        safe.durable, safe.roots, safe.doubtful = safe.doubtful.version, safe.doubtful.roots, None
