"""What a message says of the run's state counts only where a trainer has signed it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.protocol.messages import (
    Commit,
    CopiesHeld,
    ElectionReport,
    ElectorateChange,
    Granted,
    Heartbeat,
    Held,
    Join,
    KeepCopy,
    Left,
    Message,
    OpenStep,
    Prepare,
    RosterDelta,
    StepResult,
    Tally,
    VersionCertified,
    state_name,
)
from swarmflow.core.protocol.messages.checks import checks_of
from swarmflow.core.protocol.proofs import statement_of, with_proofs, without_unproven
from swarmflow.core.protocol.types import HOLDINGS_MAX, Epoch, Holding, Plan, Roster, Snapshot
from swarmflow.simulator.proofs import is_proven, sign
from tests.core.samples import LINEAGE, member
from tests.core.taken_over import EPOCH as EPOCH_OF_STEP
from tests.core.taken_over import OPENED, TALLY, report

CHECKS = checks_of(Plan(1, 8))
VERSION = 6
SNAPSHOT = Snapshot(VERSION, ("a", "b"))
EPOCH = Epoch(0, VERSION - 1)
NAME = state_name(LINEAGE, EPOCH, 2)
RESULT = StepResult(1, EPOCH, 2.0, 30, 1.0, 0.5, 0.1, 3, (3,), 0)
COMMIT = Commit(1, EPOCH, 2, 0.5, 0.1, RESULT, lineage=LINEAGE)
HELD = Held(0, VERSION, NAME, "b", COMMIT, certified=SNAPSHOT)
HOLDING = Holding(SNAPSHOT, (0,))
JOIN = Join("peer", "1.0", "run", member("a"), copies=(HOLDING,), held=HELD)
OF_STEP = replace(COMMIT, epoch=EPOCH_OF_STEP, result=replace(COMMIT.result, epoch=EPOCH_OF_STEP))
REPORT = replace(report(member("a")), join=JOIN, commit=OF_STEP)
CLAIMS: tuple[Message, ...] = (JOIN, CopiesHeld((HOLDING,)), REPORT, Left(3, HELD))
ORDERS: tuple[Message, ...] = (
    COMMIT,
    VersionCertified(SNAPSHOT),
    KeepCopy(SNAPSHOT, (0,), ((member("b"),),)),
    Granted(1, 0, VERSION, (), 0, NAME, COMMIT, certified=SNAPSHOT),
)


@pytest.mark.parametrize("message", CLAIMS, ids=lambda message: type(message).__name__)
def test_what_trainers_have_signed_is_believed_of_anybody(message: Message) -> None:
    assert without_unproven(with_proofs(message, sign), is_proven, CHECKS) == message


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
        assert without_unproven(join, is_proven, CHECKS) == bare
        assert without_unproven(CopiesHeld((holding,)), is_proven, CHECKS) == CopiesHeld(())
        assert without_unproven(Left(3, held), is_proven, CHECKS) == Left(3)
        told = replace(REPORT, join=join, commit=replace(OF_STEP, proof=proof), opened=received(REPORT.opened))
        found = without_unproven(told, is_proven, CHECKS)
        assert isinstance(found, ElectionReport)
        assert (found.join, found.commit) == (bare, None)


def test_one_of_the_two_proves_that_a_version_exists() -> None:
    signed = with_proofs(Left(3, HELD), sign)
    assert isinstance(signed, Left)
    assert signed.held is not None
    for alone in (replace(signed.held, commit=None), replace(signed.held, certified=None)):
        assert without_unproven(Left(3, alone), is_proven, CHECKS) == Left(3, alone)
    other = replace(signed.held, version=1000)
    assert without_unproven(Left(3, other), is_proven, CHECKS) == Left(3), "the proofs are of another version"


def test_a_commit_of_another_history_does_not_prove_that_a_state_exists() -> None:
    """The steps since a checkpoint are done again after a restart, with the same numbers."""
    signed = with_proofs(Left(3, replace(HELD, commit=replace(COMMIT, lineage="former"), certified=None)), sign)
    assert without_unproven(signed, is_proven, CHECKS) == Left(3)


def test_a_gradient_that_waits_for_its_commit_needs_no_proof_until_somebody_has_that() -> None:
    waits = Held(0, VERSION, NAME, "b", upcoming="u" * 32)
    assert without_unproven(Left(3, waits), is_proven, CHECKS) == Left(3, replace(waits, name="", root=""))


def told_of(opened: OpenStep, ballot: int = 0, tally: Tally | None = None) -> ElectionReport:
    results = () if tally is None else (("stage-0", 1.0, "x"),)
    return replace(report(member("a"), opened), ballot=ballot, tally=tally, results=results)


def received(opened: OpenStep) -> OpenStep:
    """Return a step as members receive it from a trainer."""
    made = with_proofs(opened, sign)
    assert isinstance(made, OpenStep)
    return made


def test_a_report_is_about_a_step_that_a_trainer_has_opened() -> None:
    opened = received(OPENED)
    assert without_unproven(told_of(opened), is_proven, CHECKS) == told_of(opened)
    blank = replace(opened, roster=Roster(), whole=opened.digest, named=opened.voters)
    assert without_unproven(told_of(blank), is_proven, CHECKS) == told_of(blank), "the same step, without its roster"
    later = replace(opened, epoch=opened.epoch.following)
    others = replace(opened, roster=opened.roster.without(OPENED.roster.peers[0].process))
    forged: tuple[OpenStep, ...] = (
        replace(opened, proof=b""),
        later,
        others,
        replace(opened, lineage="x"),
        replace(opened, term=9),
        replace(blank, named=1),
        replace(blank, newcomers=(member("a").process,)),
        replace(opened, change=ElectorateChange(left=(member("z").process,))),
    )
    for each in forged:
        assert without_unproven(told_of(each), is_proven, CHECKS) is None


def test_a_part_of_a_roster_and_a_change_of_it_have_the_proof_of_the_whole() -> None:
    checks = checks_of(Plan(5, 8))
    roster = Roster(tuple((member(f"p{stage}", stage),) for stage in range(5)), OPENED.roster.trainers)
    whole = replace(OPENED, roster=roster)
    part = received(whole.seen_from(0, ()))
    assert part.partial
    assert without_unproven(told_of(part), is_proven, checks) == told_of(part)
    following = replace(whole, epoch=whole.epoch.following, roster=roster.without(roster.peers[4].process))
    change = RosterDelta.after(whole, following)
    assert change is not None
    signed = with_proofs(change, sign)
    assert isinstance(signed, RosterDelta)
    for base in (whole, part):
        unfolded = signed.unfolded(base)
        assert without_unproven(told_of(unfolded), is_proven, checks) == told_of(unfolded)
        assert without_unproven(told_of(replace(unfolded, named=1, whole="w")), is_proven, checks) is None


def test_a_ballot_counts_that_a_trainer_has_begun() -> None:
    opened = received(OPENED)
    prepare = with_proofs(Prepare(3, EPOCH_OF_STEP, 2, (), (), TALLY), sign)
    assert isinstance(prepare, Prepare)
    true = told_of(opened, 2, prepare.tally)
    assert without_unproven(true, is_proven, CHECKS) == true
    for ballot, tally in ((3, prepare.tally), (2, replace(prepare.tally, tokens=31)), (2, TALLY), (9, None)):
        found = without_unproven(told_of(opened, ballot, tally), is_proven, CHECKS)
        assert isinstance(found, ElectionReport)
        assert (found.ballot, found.tally, found.results) == (0, None, ())


def test_a_trainer_signs_what_it_has_opened_itself() -> None:
    own = with_proofs(told_of(OPENED, 2, TALLY), sign)
    assert without_unproven(own, is_proven, CHECKS) == told_of(OPENED, 2, TALLY)


def test_other_messages_are_what_they_were() -> None:
    beat = Heartbeat()
    assert with_proofs(beat, sign) is beat
    assert without_unproven(beat, is_proven, CHECKS) is beat


def test_no_more_signatures_are_checked_than_copies_are_believed() -> None:
    checked: list[bytes] = []

    def is_none(statement: bytes, proof: bytes) -> bool:
        checked.append(proof)
        return False

    many = tuple(Holding(Snapshot(version, ("a", "b")), (0,)) for version in range(1, 50))
    assert without_unproven(CopiesHeld(many), is_none, CHECKS) == CopiesHeld(())
    assert len(checked) == HOLDINGS_MAX


def test_no_signature_is_checked_of_what_cannot_be_true() -> None:
    def is_asked(statement: bytes, proof: bytes) -> bool:
        raise AssertionError("a statement of 1 MiB")

    long = CopiesHeld((Holding(Snapshot(1, ("a" * (1 << 20), "b"), b"x"), (0,)),))
    assert without_unproven(long, is_asked, CHECKS) is long
    assert CHECKS.wrong(long) is not None
