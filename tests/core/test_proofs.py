"""What a message says of the run's state counts only where a trainer has signed it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.protocol.messages import (
    Commit,
    CopiesHeld,
    ElectionReport,
    Granted,
    Heartbeat,
    Held,
    Join,
    KeepCopy,
    Left,
    Message,
    StepResult,
    VersionCertified,
)
from swarmflow.core.protocol.proofs import statement_of, with_proofs, without_unproven
from swarmflow.core.protocol.types import HOLDINGS_MAX, Epoch, Holding, Snapshot
from swarmflow.simulator.proofs import is_proven, sign
from tests.core.samples import member
from tests.core.taken_over import report

VERSION, NAME = 6, "n" * 32
SNAPSHOT = Snapshot(VERSION, ("a", "b"))
EPOCH = Epoch(0, VERSION - 1)
COMMIT = Commit(1, EPOCH, 2, 0.5, 0.1, StepResult(1, EPOCH, 2.0, 30, 1.0, 0.5, 0.1, 3, (3,), 0))
HELD = Held(1, VERSION, NAME, "b", COMMIT, certified=SNAPSHOT)
HOLDING = Holding(SNAPSHOT, (0,))
JOIN = Join("peer", "1.0", "run", member("a"), copies=(HOLDING,), held=HELD)
REPORT = replace(report(member("a")), join=JOIN, commit=COMMIT)
CLAIMS: tuple[Message, ...] = (JOIN, CopiesHeld((HOLDING,)), REPORT, Left(3, HELD))
ORDERS: tuple[Message, ...] = (
    COMMIT,
    VersionCertified(SNAPSHOT),
    KeepCopy(SNAPSHOT, (0,), ((member("b"),),)),
    Granted(1, 0, VERSION, (), 0, NAME, COMMIT, certified=SNAPSHOT),
)


@pytest.mark.parametrize("message", CLAIMS, ids=lambda message: type(message).__name__)
def test_what_trainers_have_signed_is_believed_of_anybody(message: Message) -> None:
    assert without_unproven(with_proofs(message, sign), is_proven) == message


@pytest.mark.parametrize("message", ORDERS, ids=lambda message: type(message).__name__)
def test_an_order_is_signed_once_and_says_the_same(message: Message) -> None:
    signed = with_proofs(message, sign)
    assert signed == message
    assert proofs(signed) == [sign(statement_of(each)) for each in quoted(message)] != []
    assert proofs(with_proofs(signed, lambda statement: b"another trainer's")) == proofs(signed)


def quoted(message: Message) -> list[Snapshot | Commit]:
    """What a message quotes."""
    if isinstance(message, Commit):
        return [message]
    found = (getattr(message, name, None) for name in ("snapshot", "certified", "commit"))
    return [each for each in found if isinstance(each, Snapshot | Commit)]


def proofs(message: Message) -> list[bytes]:
    return [each.proof for each in quoted(message)]


def test_what_nobody_has_signed_is_left_out() -> None:
    for proof in (b"", b"forged", sign(statement_of(replace(SNAPSHOT, version=5)))):
        holding = replace(HOLDING, snapshot=replace(SNAPSHOT, proof=proof))
        held = replace(HELD, commit=replace(COMMIT, proof=proof), certified=replace(SNAPSHOT, proof=proof))
        join = replace(JOIN, copies=(holding,), held=held)
        bare = replace(JOIN, copies=(), held=None)
        assert without_unproven(join, is_proven) == bare
        assert without_unproven(CopiesHeld((holding,)), is_proven) == CopiesHeld(())
        assert without_unproven(Left(3, held), is_proven) == Left(3)
        told = replace(REPORT, join=join, commit=replace(COMMIT, proof=proof))
        found = without_unproven(told, is_proven)
        assert isinstance(found, ElectionReport)
        assert (found.join, found.commit) == (bare, None)


def test_one_of_the_two_proves_that_a_version_exists() -> None:
    signed = with_proofs(Left(3, HELD), sign)
    assert isinstance(signed, Left)
    assert signed.held is not None
    for alone in (replace(signed.held, commit=None), replace(signed.held, certified=None)):
        assert without_unproven(Left(3, alone), is_proven) == Left(3, alone)
    other = replace(signed.held, version=1000)
    assert without_unproven(Left(3, other), is_proven) == Left(3), "the proofs are of another version"


def test_a_gradient_that_waits_for_its_commit_needs_no_proof_until_somebody_has_that() -> None:
    waits = Held(1, VERSION, NAME, "b", upcoming="u" * 32)
    assert without_unproven(Left(3, waits), is_proven) == Left(3, replace(waits, name="", root=""))


def test_other_messages_are_what_they_were() -> None:
    beat = Heartbeat()
    assert with_proofs(beat, sign) is beat
    assert without_unproven(beat, is_proven) is beat


def test_no_more_signatures_are_checked_than_copies_are_believed() -> None:
    checked: list[bytes] = []

    def is_none(statement: bytes, proof: bytes) -> bool:
        checked.append(proof)
        return False

    many = tuple(Holding(Snapshot(version, ("a", "b")), (0,)) for version in range(1, 1000))
    assert without_unproven(CopiesHeld(many), is_none) == CopiesHeld(())
    assert len(checked) == HOLDINGS_MAX
