"""What messages quote of leaders: versions that were certified, and commits. Each bears a trainer's signature.

Peers keep both, and show them to later leaders: of what a peer says about the run's state, only that counts which a
trainer has signed. The signatures are made and checked outside of the core, over the statements made here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from swarmflow.core.protocol.messages import (
    Commit,
    CopiesHeld,
    ElectionReport,
    Granted,
    Held,
    Join,
    KeepCopy,
    Left,
    Message,
    VersionCertified,
)
from swarmflow.core.protocol.types import HOLDINGS_MAX, Holding, Snapshot

Sign = Callable[[bytes], bytes]
"""Returns the proof of a statement: a trainer's signature."""

IsProven = Callable[[bytes, bytes], bool]
"""(statement, proof): whether a trainer of the run has signed it."""

_Of = Callable[[Snapshot | Commit], Snapshot | Commit | None]
X = TypeVar("X", Snapshot, Commit)


def statement_of(quoted: Snapshot | Commit) -> bytes:
    """Return what a trainer signs of a version or of a commit."""
    return repr(replace(quoted, proof=b"")).encode()


def with_proofs(message: Message, sign: Sign) -> Message:
    """Return a message of a trainer, in which all that it says about the run's state is signed."""

    def signed(quoted: Snapshot | Commit) -> Snapshot | Commit:
        return quoted if quoted.proof else replace(quoted, proof=sign(statement_of(quoted)))

    return _mapped(message, signed)


def without_unproven(message: Message, is_proven: IsProven) -> Message:
    """Return a message without what it says about the run's state and no trainer has signed."""

    def proven(quoted: Snapshot | Commit) -> Snapshot | Commit | None:
        return quoted if is_proven(statement_of(quoted), quoted.proof) else None

    return _mapped(message, proven)


def _mapped(message: Message, of: _Of) -> Message:
    change = _QUOTES.get(type(message))
    changed: Message = message if change is None else change(message, of)
    return changed


def _one(quoted: X | None, of: _Of) -> X | None:
    return None if quoted is None else of(quoted)  # type: ignore[return-value]  # it returns what it is given


def _join(join: Join, of: _Of) -> Join:
    if not join.copies and join.held is None:
        return join
    return replace(join, copies=_copies(join.copies, of), held=_held(join.held, of))


def _copies(copies: tuple[Holding, ...], of: _Of) -> tuple[Holding, ...]:
    """Return the copies with a proof. More than are believed would only cost the receiver time, a signature each."""
    copies = copies[:HOLDINGS_MAX]
    snapshots = [(holding, _one(holding.snapshot, of)) for holding in copies]
    return tuple(replace(holding, snapshot=snapshot) for holding, snapshot in snapshots if snapshot is not None)


def _held(held: Held | None, of: _Of) -> Held | None:
    """Return what is held; under its name only where a commit or the version's certificate proves that it exists."""
    if held is None:
        return None
    commit, certified = _one(held.commit, of), _one(held.certified, of)
    exists = commit is not None and commit.epoch.step == held.version - 1
    exists |= certified is not None and certified.version == held.version
    proven = replace(held, commit=commit, certified=certified)
    if exists:
        return proven
    return replace(proven, name="", root="") if held.upcoming else None


_QUOTES: dict[type, Callable[[Any, _Of], Any]] = {
    Join: _join,
    CopiesHeld: lambda message, of: replace(message, copies=_copies(message.copies, of)),
    ElectionReport: lambda message, of: replace(message, join=_join(message.join, of), commit=_one(message.commit, of)),
    Left: lambda message, of: replace(message, held=_held(message.held, of)),
    Granted: lambda message, of: replace(
        message, certified=_one(message.certified, of), commit=_one(message.commit, of)
    ),
    **dict.fromkeys((KeepCopy, VersionCertified), lambda message, of: replace(message, snapshot=of(message.snapshot))),
    Commit: lambda message, of: of(message),
}
