"""What messages quote of leaders: versions that were certified, commits, steps and ballots. Trainers have signed each.

Peers keep them, and show them to later leaders: of what a peer says about the run's state, only that counts which a
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
    OpenStep,
    Prepare,
    RosterDelta,
    Tally,
    VersionCertified,
    state_name,
)
from swarmflow.core.protocol.messages.checks import MessageChecks
from swarmflow.core.protocol.types import HOLDINGS_MAX, Epoch, Holding, Snapshot

Sign = Callable[[bytes], bytes]
"""Returns the proof of a statement: a trainer's signature."""

IsProven = Callable[[bytes, bytes], bool]
"""(statement, proof): whether a trainer of the run has signed it."""

_Of = Callable[[Snapshot | Commit], Snapshot | Commit | None]
X = TypeVar("X", Snapshot, Commit)


def statement_of(quoted: Snapshot | Commit) -> bytes:
    """Return what a trainer signs of a version or of a commit."""
    return repr(replace(quoted, proof=b"")).encode()


def opening_of(opened: OpenStep | RosterDelta) -> bytes:
    """Return what a trainer signs of a step that it opens: the same of each part of its roster, and of a change."""
    if isinstance(opened, OpenStep):
        whole = opened.digest, opened.voters, opened.newcomers
    else:
        whole = opened.whole, opened.named, ()
    rest = opened.lineage, opened.exponent, opened.careful, opened.change, opened.ahead, opened.kept, opened.commit
    return repr(("opened", opened.term, opened.epoch, *whole, *rest)).encode()


def ballot_of(epoch: Epoch, ballot: int, tally: Tally) -> bytes:
    """Return what a trainer signs of a ballot that it begins."""
    return repr(("ballot", epoch, ballot, tally)).encode()


def with_proofs(message: Message, sign: Sign) -> Message:
    """Return a message of a trainer, in which all that it says about the run's state is signed."""

    def signed(quoted: Snapshot | Commit) -> Snapshot | Commit:
        return quoted if quoted.proof else replace(quoted, proof=sign(statement_of(quoted)))

    match message:
        case OpenStep() | RosterDelta():
            return replace(message, commit=_one(message.commit, signed), proof=sign(opening_of(message)))
        case Prepare():
            tally = replace(message.tally, proof=sign(ballot_of(message.epoch, message.ballot, message.tally)))
            return replace(message, tally=tally)
        case ElectionReport():  # of what it has opened itself it has no proof yet
            message = _report_with_proofs(message, sign)
    return _mapped(message, signed)


def _report_with_proofs(report: ElectionReport, sign: Sign) -> ElectionReport:
    opened, tally = report.opened, report.tally
    if not opened.proof:
        opened = replace(opened, proof=sign(opening_of(opened)))
    if tally is not None and not tally.proof:
        tally = replace(tally, proof=sign(ballot_of(opened.epoch, report.ballot, tally)))
    return replace(report, opened=opened, tally=tally)


def without_unproven(message: Message, is_proven: IsProven, checks: MessageChecks) -> Message | None:
    """Return a message without what it says about the run's state and no trainer has signed.

    None: it reports on a step that no trainer has opened. One that cannot be true is returned as it is: it is refused
    for that, and what is signed of it may be as long as its sender likes.
    """
    if type(message) not in _QUOTES or checks.wrong(message) is not None:
        return message
    if isinstance(message, ElectionReport):
        opened, tally = message.opened, message.tally
        if not is_proven(opening_of(opened), opened.proof):
            return None
        if tally is None or not is_proven(ballot_of(opened.epoch, message.ballot, tally), tally.proof):
            message = replace(message, ballot=0, tally=None, results=())
        if opened.commit is not None:  # it was signed with the step; its own proof may be of anything
            message = replace(message, opened=replace(opened, commit=replace(opened.commit, proof=b"")))

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
    if commit is not None and state_name(commit.lineage, commit.epoch, commit.ballot) != held.name:
        commit = None  # of another history
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
