"""Who may say what of a hop: only its holder reports it, and only who had it hands it on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.protocol.handovers import checked, handovers_of, signed
from swarmflow.core.protocol.messages import (
    Adopt,
    Backward,
    Done,
    ElectionReport,
    Forward,
    HopHandover,
    Message,
    NotFinite,
    Overflow,
    RelayedTensor,
    RelayTensor,
)
from swarmflow.core.protocol.messages.checks import checks_of
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Attempt, Plan, ProcessId, Roster
from swarmflow.simulator.proofs import is_signed_by, sign_as
from tests.core.samples import member, microbatch, process
from tests.core.taken_over import OPENED, report

TRAINER, FIRST, SECOND, LIAR, LEADER = map(process, ("t", "first", "second", "liar", "leader"))
HOP = microbatch(3)
CHECKS = checks_of(Plan(stages=3, microbatches=8))


def sent(sender: ProcessId, message: Message, to: ProcessId, body: bytes = b"") -> Message:
    """Return a message as its sender signs it."""
    return signed(message, to, lambda statement: sign_as(sender, statement), lambda: body)


def taken(sender: ProcessId, message: Message, me: ProcessId, body: bytes = b"") -> Message | None:
    """Return what a receiver believes of a message."""
    return checked(message, sender, me, is_signed_by, lambda: body, CHECKS)


def offer(kind: type[Forward | Adopt], stage: int = 1, **fields: object) -> Forward | Adopt:
    return kind(HOP, stage, FIRST_ATTEMPT, **fields)  # type: ignore[arg-type]


def first_handed() -> Forward:
    """Return how the trainer has handed the hop of stage 0 to the first peer."""
    made = sent(TRAINER, Forward(HOP, 0, FIRST_ATTEMPT), FIRST)
    assert isinstance(made, Forward)
    return made


def second_done(**of_offer: object) -> Done:
    """Return the Done of the second peer, which the first one has handed the hop of stage 1."""
    before = handovers_of(TRAINER, first_handed())
    made = sent(FIRST, Forward(HOP, 1, FIRST_ATTEMPT, handovers=before, **of_offer), SECOND)  # type: ignore[arg-type]
    assert isinstance(made, Forward)
    return Done(HOP, 1, FIRST_ATTEMPT, handovers=handovers_of(FIRST, made))


@pytest.mark.parametrize("kind", [Forward, Adopt])
def test_an_offer_counts_from_who_has_signed_it_for_who_gets_it(kind: type[Forward | Adopt]) -> None:
    shown = handovers_of(TRAINER, first_handed())
    made = sent(FIRST, offer(kind, handovers=shown), SECOND)
    assert isinstance(made, Forward | Adopt)
    assert taken(FIRST, made, SECOND) is made
    assert taken(FIRST, made, LIAR) is None, "it was for another one"
    assert taken(LIAR, made, SECOND) is None, "it is another one's"
    for other in (replace(made, attempt=Attempt(1)), replace(made, stage=2), replace(made, microbatch=microbatch(4))):
        assert taken(FIRST, other, SECOND) is None
    assert taken(FIRST, replace(made, proof=b""), SECOND) is None
    [own] = shown
    for handovers in ((), (own, own), (replace(own, stage=1),), (replace(own, before=b"x"),)):
        assert taken(FIRST, sent(FIRST, offer(kind, handovers=handovers), SECOND), SECOND) is None, "not all the way"


def test_who_asks_for_a_hop_shows_that_the_one_before_was_handed_to_it() -> None:
    shown = handovers_of(TRAINER, first_handed())
    trainers = sent(TRAINER, offer(Adopt, 0), FIRST)
    assert taken(TRAINER, trainers, FIRST) is trainers, "a trainer has none to show"
    [own] = shown
    for handovers in ((), (replace(own, giver=LIAR),), (replace(own, stage=1),)):
        assert taken(FIRST, sent(FIRST, offer(Adopt, handovers=handovers), SECOND), SECOND) is None
    assert taken(FIRST, sent(FIRST, offer(Adopt, 2, handovers=shown), SECOND), SECOND) is None
    assert taken(FIRST, sent(FIRST, offer(Adopt, 0, handovers=shown), SECOND), SECOND) is None
    assert taken(LIAR, sent(LIAR, offer(Adopt, handovers=shown), SECOND), SECOND) is None, "it was another one's"
    other = Adopt(microbatch(4), 1, FIRST_ATTEMPT, handovers=shown)
    assert taken(FIRST, sent(FIRST, other, SECOND), SECOND) is None, "another microbatch was handed to it"


def test_a_report_counts_from_the_holder_alone() -> None:
    done = second_done()
    assert taken(SECOND, done, LEADER) is done
    reports = done, Overflow(HOP, done.handovers), NotFinite(HOP.epoch, HOP.index, "loss", handovers=done.handovers)
    for message in reports:
        assert taken(SECOND, message, LEADER) is message
        assert taken(LIAR, message, LEADER) is None, "it has seen the handover, and was not given the hop"
        assert taken(SECOND, replace(message, handovers=()), LEADER) is None
    assert taken(SECOND, replace(done, stage=2), LEADER) is None
    assert taken(SECOND, replace(done, attempt=Attempt(0, 1)), LEADER) is None
    assert taken(SECOND, replace(done, microbatch=microbatch(4)), LEADER) is None
    assert taken(SECOND, Overflow(microbatch(4), done.handovers), LEADER) is None
    assert taken(SECOND, NotFinite(HOP.epoch, -1, "sum"), LEADER) is not None, "of a sum it has no handover"


def test_a_giver_answers_for_how_it_got_the_hop() -> None:
    """The holder, which cannot check that, cannot change it either; so what is wrong with it is the giver's doing."""
    done = second_done()
    own, before = done.handovers
    assert taken(SECOND, replace(done, handovers=(own,)), LEADER) is None, "the holder has left it out"
    for changed in (replace(before, giver=LIAR), replace(before, attempt=Attempt(1)), replace(before, proof=b"x")):
        assert taken(SECOND, replace(done, handovers=(own, changed)), LEADER) is None, "the holder has changed it"
    forged = Forward(HOP, 0, FIRST_ATTEMPT, proof=b"x" * 8)
    made = sent(FIRST, Forward(HOP, 1, FIRST_ATTEMPT, handovers=handovers_of(TRAINER, forged)), SECOND)
    assert isinstance(made, Forward)
    message = Done(HOP, 1, FIRST_ATTEMPT, handovers=handovers_of(FIRST, made))
    believed = taken(SECOND, message, LEADER)
    assert isinstance(believed, Done)
    assert [each.giver for each in believed.handovers] == [FIRST]


def test_what_a_report_to_a_candidate_lists_needs_the_same() -> None:
    done = second_done()
    opened = replace(OPENED, roster=Roster(((), (member("second", 1),), ()), OPENED.roster.trainers))
    told = replace(report(member("second", 1), opened), done=(done,))
    assert isinstance(told, ElectionReport)
    assert taken(SECOND, told, LEADER) == told
    assert taken(LIAR, told, LEADER) is None


def test_who_passes_on_what_a_liar_handed_to_it_is_not_to_blame() -> None:
    """The liar shows how another hop came to it. The third peer cannot check that, and neither can the second."""
    third, other = process("third"), sent(TRAINER, Forward(microbatch(4), 0, FIRST_ATTEMPT), LIAR)
    assert isinstance(other, Forward)
    made = sent(LIAR, Forward(HOP, 1, FIRST_ATTEMPT, handovers=handovers_of(TRAINER, other)), SECOND)
    assert isinstance(made, Forward)
    assert taken(LIAR, made, SECOND) is made
    further = sent(SECOND, Forward(HOP, 2, FIRST_ATTEMPT, handovers=handovers_of(LIAR, made)), third)
    assert isinstance(further, Forward)
    assert taken(SECOND, further, third) is further
    believed = taken(third, Done(HOP, 2, FIRST_ATTEMPT, handovers=handovers_of(SECOND, further)), LEADER)
    assert isinstance(believed, Done)
    assert [each.giver for each in believed.handovers] == [SECOND, LIAR]


@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_who_relays_can_change_nothing(kind: str) -> None:
    shown = handovers_of(TRAINER, first_handed())
    whole = {"forward": Forward(HOP, 1, FIRST_ATTEMPT, handovers=shown), "backward": Backward(HOP, 1, FIRST_ATTEMPT)}
    inner = {kind: whole[kind]}
    asked = sent(FIRST, RelayTensor(SECOND, **inner), LIAR, b"body")  # type: ignore[arg-type]
    assert isinstance(asked, RelayTensor)
    assert taken(FIRST, asked, LIAR, b"body") is asked
    assert taken(FIRST, asked, LIAR, b"other") is None
    relayed = RelayedTensor(FIRST, asked.forward, asked.backward, asked.proof)
    assert taken(LIAR, relayed, SECOND, b"body") is relayed
    assert taken(LIAR, relayed, SECOND, b"other") is None, "the body is another one"
    assert taken(LIAR, replace(relayed, origin=LIAR), SECOND, b"body") is None, "the origin is another one"
    assert taken(LIAR, relayed, LEADER, b"body") is None, "the receiver is another one"
    other = Backward(HOP, 1, Attempt(1))
    assert taken(LIAR, replace(relayed, forward=None, backward=other), SECOND, b"body") is None


@pytest.mark.parametrize(
    "message",
    [
        Forward(HOP, 10**15, FIRST_ATTEMPT),
        Adopt(HOP, 10**15, FIRST_ATTEMPT),
        RelayTensor(LIAR, Forward(HOP, 10**15, FIRST_ATTEMPT)),
        RelayedTensor(LIAR, Forward(HOP, 10**15, FIRST_ATTEMPT)),
        Done(HOP, 1, FIRST_ATTEMPT, handovers=(HopHandover(LIAR, 1, FIRST_ATTEMPT),) * 4),
        replace(report(member("a")), done=(Done(HOP, 1, FIRST_ATTEMPT),) * 17),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_cannot_be_costs_neither_memory_nor_a_signature(message: Message) -> None:
    def asked(*_: object) -> bool:
        raise AssertionError("a signature was checked")

    assert CHECKS.wrong(message) is not None, "its receiver refuses it"
    assert checked(message, LIAR, SECOND, asked, bytes, CHECKS) is message
