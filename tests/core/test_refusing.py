"""Messages that cannot be true: refused before a machine acts on them, and whoever sent them is put out alone."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from swarmflow.core.commit.ledger import Ledger
from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.pipeline.dispatcher import dispatcher_for
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.pipeline.source import MicrobatchSource
from swarmflow.core.protocol.actions import Action, Count, Forget, LoadState, Rejoin, Release, RunLoss
from swarmflow.core.protocol.events import Event, ForwardComputed, Mishandled, Received, StateLoaded
from swarmflow.core.protocol.messages import (
    Assign,
    Backward,
    Committed,
    Done,
    ElectionReport,
    ElectorateChange,
    Evicted,
    Forward,
    Granted,
    Heartbeat,
    Join,
    LoadFailed,
    MemberEntered,
    MemberFailed,
    Message,
    OpenStep,
    Prepare,
    Prepared,
    Ready,
    Recall,
    Recalled,
    Refused,
    RelayedTensor,
    RelayTensor,
    ReserveSlot,
    SlotReserved,
    StateRoot,
    Suspect,
    Tally,
    Unrepairable,
)
from swarmflow.core.protocol.messages.checks import COUNT_MAX, LOSS_MAX, REASON_MAX, checks_of
from swarmflow.core.protocol.types import (
    FIRST_ATTEMPT,
    REPAIRS_MAX,
    Attempt,
    Epoch,
    Group,
    Member,
    Microbatch,
    Plan,
    ProcessId,
    Ref,
    Roster,
)
from tests.core.hops import computed, receive
from tests.core.samples import EPOCH, LINEAGE, member, messages, microbatch, of_type, process, released

PLAN = Plan(2, 4)
ME, MATE, BEFORE, LEADER, STRANGER = process("me"), process("mate"), process("before"), process("t0"), process("x")
ROSTER = Roster(((member("before"),), (member("mate", 1), member("me", 1))), (member("t0", -1),))
OPENED = OpenStep(1, EPOCH, ROSTER, LINEAGE)
NAN = float("nan")
TALLY = Tally(1.0, 4, 0)
WHOLE = ElectionReport(2, Join("peer", "1", "run", member("a", 1)), member("a", 1), True, 0, False, OPENED)


def cannot_be(message: Message) -> str:
    return checks_of(PLAN).wrong(message) or ""


def test_a_liar_does_not_make_others_say_what_cannot_be() -> None:
    """A hop that was passed on with the highest attempt that is believed is repaired with that one."""
    me, before, leader = process("me"), process("before"), process("leader")
    after = {process("x"), process("y")}
    hops = HopTable(1, 3, 4, dispatcher_for(Plan(3, 4), me, 2), leader)
    hops.open(EPOCH, tuple(sorted(after)), (before,))
    highest = Forward(microbatch(0), 1, Attempt(0, REPAIRS_MAX))
    receive(hops, before, highest, (Ref(1), Ref(2)))
    [(holder, _)] = messages(computed(hops, ForwardComputed(highest.microbatch, Ref(3, 100))), Forward)
    again = messages(hops.gone(holder, 1.0), Forward)
    assert {to for to, _ in again} == after - {holder}
    assert [checks_of(Plan(3, 4)).wrong(message) for _, message in again] == [None]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Prepared(EPOCH, 1, (("stage-0", -1.0, "x"),)), "results"),
        (Prepared(EPOCH, 1, (("stage-0", NAN, "x"),)), "results"),
        (Prepared(EPOCH, 1, (("stage-0", 1.0, "x" * 129),)), "results"),
        (Join("peer", "1", "run", member("a"), speed=1e300), "speed"),
        (Join("peer", "1", "run", member("a"), speed=NAN), "speed"),
        (Join("peer", "1", "run", Member(process("a"), 0, -1)), "member"),
        (Suspect(MATE, "x" * (1 << 20)), "reason"),
        (Suspect(ProcessId("", 1), ""), "process"),
        (Forward(microbatch(0), 2, FIRST_ATTEMPT), "stage"),
        (Forward(microbatch(4), 1, FIRST_ATTEMPT), "microbatch"),
        (Forward(microbatch(0, Epoch(0, -1)), 1, FIRST_ATTEMPT), "microbatch"),
        (Forward(microbatch(0), 1, Attempt(denials=-1)), "attempt"),
        (Forward(microbatch(0), 1, Attempt(repair=1 << 62)), "attempt"),
        (RelayTensor(MATE, Forward(microbatch(9), 1, FIRST_ATTEMPT)), "forward"),
        (RelayTensor(MATE), "do not fit"),
        (Done(microbatch(0), 1, FIRST_ATTEMPT, NAN, 1), "loss_sum"),
        (Done(microbatch(99), 1, FIRST_ATTEMPT, 0.0, 1), "microbatch"),
        (Done(microbatch(0), 9, FIRST_ATTEMPT, 0.0, 1), "stage"),
        (Ready(0, 0, "x", -4), "capacity"),
        (StateRoot(0, 1, "x" * 200), "root"),
        (Assign(1, EPOCH, (0, 4), 0), "indices"),
        (Prepare(1, EPOCH, 1, ((0, FIRST_ATTEMPT), (0, Attempt(denials=1))), (), TALLY), "do not fit"),
        (Prepare(1, EPOCH, 1, (), (Group("stage-1", (ME, ME)),), TALLY), "groups"),
        (Prepare(1, EPOCH, 1, (), (), Tally(1.0, 3, 0)), "tally"),
        (replace(WHOLE, ballot=1, tally=Tally(1.0, 0, 0), results=(("stage-1", 1.0, "x"),)), "tally"),
        (replace(WHOLE, done=(Done(microbatch(0), 0, FIRST_ATTEMPT),)), "do not fit"),
        (replace(WHOLE, reassignment=1 << 40), "reassignment"),
        (replace(WHOLE, ballot=1 << 40), "ballot"),
        (replace(WHOLE, gone=(WHOLE.member.process,)), "do not fit"),
        (replace(WHOLE, suspects=(WHOLE.member.process,)), "do not fit"),
        (OpenStep(1, EPOCH, Roster(ROSTER.stages), LINEAGE), "do not fit"),
        (OpenStep(1, EPOCH, Roster(ROSTER.stages[:1], ROSTER.trainers), LINEAGE), "roster"),
        (OpenStep(1, EPOCH, Roster(ROSTER.stages[::-1], ROSTER.trainers), LINEAGE), "roster"),
        (OpenStep(1, EPOCH, Roster((), ()), LINEAGE), "stages"),
        (replace(OPENED, change=ElectorateChange((ME,), (ME,))), "change"),
        (replace(OPENED, change=ElectorateChange((), (), (ME,))), "change"),
    ],
)
def test_what_cannot_be_is_found(message: Message, field: str) -> None:
    assert field in cannot_be(message)


def test_only_tensors_have_bodies() -> None:
    assert checks_of(PLAN).wrong(Forward(microbatch(0), 1, FIRST_ATTEMPT), 2) is None
    assert checks_of(PLAN).wrong(Forward(microbatch(0), 1, FIRST_ATTEMPT), 3) == "Forward with 3 bodies"
    assert checks_of(PLAN).wrong(Heartbeat(), 1) == "Heartbeat with 1 bodies"
    assert checks_of(PLAN).wrong(RelayTensor(ME, Forward(microbatch(0), 1, FIRST_ATTEMPT)), 2) is None
    relayed = RelayTensor(ME, backward=Backward(microbatch(0), 0, FIRST_ATTEMPT))
    assert checks_of(PLAN).wrong(relayed, 2) == "RelayTensor with 2 bodies"


def test_every_field_of_every_message_has_a_rule() -> None:
    """The tables are followed through all types as they are made; a field without a rule would raise here."""
    assert set(checks_of(Plan(7, 3))._checks) == set(get_args(Message))


def test_what_can_be_is_not() -> None:
    join = Join("peer", "1", "run", member("a", 99))
    near = OPENED.seen_from(1, ())
    for message in (OPENED, near, join, WHOLE, Heartbeat(version=-1), MemberFailed(1, EPOCH, ME, "")):
        assert cannot_be(message) == ""


# --- a peer -----------------------------------------------------------------------------------------------------------


class Peer:
    """A member of the last stage."""

    def __init__(self) -> None:
        join = Join("peer", "1.0", "run", Member(ME, -1))
        self.machine = PeerMachine(ME, LeaderLease(LEADER), PLAN, PeerSettings(join))
        self.hear(Granted(1, 1, 0, ()))
        self.event(StateLoaded(1, 0, "digest", 4, (("stage-1", 10),)))
        self.hear(OPENED)

    def event(self, event: Event) -> list[Action]:
        return self.machine.handle(event, 0.0)

    def hear(self, message: Message, sender: ProcessId = LEADER, bodies: tuple[Ref, ...] = ()) -> list[Action]:
        return self.event(Received(sender, message, bodies))


def test_a_peer_puts_out_who_sends_what_cannot_be_and_serves_the_others() -> None:
    peer = Peer()
    actions = peer.hear(Forward(microbatch(0), 5, FIRST_ATTEMPT), BEFORE, (Ref(1), Ref(2)))
    assert released(actions) == [Ref(1), Ref(2)]
    assert of_type(actions, Forget) == [Forget(BEFORE)]
    assert [(to, suspect.process) for to, suspect in messages(actions, Suspect)] == [(LEADER, BEFORE)]
    assert Count("messages_refused", "Forward") in actions
    assert of_type(peer.hear(Forward(microbatch(0), 1, FIRST_ATTEMPT), BEFORE, (Ref(3), Ref(4))), RunLoss)


def test_a_message_about_a_hop_comes_from_where_its_sender_serves() -> None:
    peer = Peer()
    actions = peer.hear(Forward(microbatch(0), 1, FIRST_ATTEMPT), MATE, (Ref(1), Ref(2)))
    assert not of_type(actions, RunLoss)
    assert [suspect.process for _, suspect in messages(actions, Suspect)] == [MATE]


def test_nobody_is_made_to_answer_what_it_would_be_put_out_for() -> None:
    """An answer names the stage of the question: none of another one's may come from here."""
    peer = Peer()
    assert messages(peer.hear(Recall(microbatch(0), 1, gradient=True), BEFORE), Recalled)
    actions = peer.hear(Recall(microbatch(0), 0, gradient=True), BEFORE)
    assert not messages(actions, Recalled)
    assert of_type(actions, Forget) == [Forget(BEFORE)]


def test_who_comes_in_amid_a_step_takes_work_of_the_next_one_where_that_has_begun() -> None:
    for ahead in (False, True):
        peer = Peer()
        assert peer.machine.hops is not None
        for _ in range(2):  # a new leader says it again
            peer.hear(MemberEntered(1, EPOCH, Member(ME, 1, 4), ahead))
            assert peer.machine.hops.ahead == (EPOCH.following if ahead else None)
        early = peer.hear(ReserveSlot(Microbatch(EPOCH.following, 0), 1, FIRST_ATTEMPT), BEFORE)
        assert bool(messages(early, SlotReserved)) == ahead, "else it keeps the question until it is due"


@pytest.mark.parametrize("ahead", [False, True])
def test_what_overtakes_the_word_of_a_newcomer_is_done_when_that_comes(ahead: bool) -> None:
    peer, epoch = Peer(), EPOCH
    if ahead:
        peer.hear(Prepare(1, EPOCH, 1, (), (Group("stage-1", (ME, MATE), ballot=1),), TALLY, ahead=True))
        epoch = EPOCH.following
    assert not messages(peer.hear(ReserveSlot(Microbatch(epoch, 0), 1, FIRST_ATTEMPT), STRANGER), SlotReserved)
    entered = peer.hear(MemberEntered(1, EPOCH, Member(STRANGER, 0, 4), ahead))
    assert [to for to, _ in messages(entered, SlotReserved)] == [STRANGER]


def test_a_peer_that_came_in_again_on_another_stage_puts_out_nobody_that_does_not_know_it() -> None:
    """What still comes of the step was meant for the stage at which it began; nobody there knew of the move."""
    peer = Peer()
    peer.hear(Granted(1, 0, 0, ()))
    peer.event(StateLoaded(0, 0, "digest", 4, (("stage-0", 10),)))
    peer.hear(MemberEntered(1, EPOCH, Member(ME, 0, 4)))
    assert peer.machine.epoch_view is not None
    assert (peer.machine.stage, peer.machine.epoch_view.place(ME)) == (0, 0)
    actions = peer.hear(Backward(microbatch(0), 0, FIRST_ATTEMPT), BEFORE, (Ref(1),))
    assert not of_type(actions, Forget)
    assert released(actions) == [Ref(1)]


def test_who_carries_what_cannot_come_from_there_answers_for_it() -> None:
    peer = Peer()
    actions = peer.hear(RelayedTensor(LEADER, forward=Forward(microbatch(0), 1, FIRST_ATTEMPT)), MATE, (Ref(1), Ref(2)))
    assert released(actions) == [Ref(1), Ref(2)]
    actions = peer.hear(RelayedTensor(MATE, forward=Forward(microbatch(0), 1, FIRST_ATTEMPT)), BEFORE, (Ref(1), Ref(2)))
    assert [suspect.process for _, suspect in messages(actions, Suspect)] == [BEFORE]


@pytest.mark.parametrize(
    ("sender", "carry"),
    [
        (MATE, RelayTensor(BEFORE, Forward(microbatch(0), 0, FIRST_ATTEMPT))),
        (MATE, RelayTensor(ME, Forward(microbatch(0), 1, FIRST_ATTEMPT))),
        (BEFORE, RelayTensor(LEADER, Forward(microbatch(0), 0, FIRST_ATTEMPT))),
        (BEFORE, RelayTensor(MATE, backward=Backward(microbatch(0), 1, FIRST_ATTEMPT))),
        (LEADER, RelayTensor(MATE, Forward(microbatch(0), 1, FIRST_ATTEMPT))),
    ],
)
def test_nobody_is_made_to_carry_what_it_would_be_put_out_for(sender: ProcessId, carry: RelayTensor) -> None:
    peer = Peer()
    actions = peer.hear(carry, sender, (Ref(1),))
    assert not messages(actions, RelayedTensor)
    assert released(actions) == [Ref(1)]
    assert of_type(actions, Rejoin) if sender == LEADER else of_type(actions, Forget) == [Forget(sender)]


def test_what_is_to_be_carried_in_a_later_epoch_waits_for_its_places() -> None:
    """Who serves what by then is not known yet: its sender may have moved."""
    peer, later = Peer(), Epoch(1, 0)
    carry = RelayTensor(MATE, Forward(microbatch(0, later), 1, FIRST_ATTEMPT))
    assert not messages(peer.hear(carry, BEFORE, (Ref(1), Ref(2))), RelayedTensor)
    actions = peer.hear(replace(OPENED, epoch=later))
    assert messages(actions, RelayedTensor) == [(MATE, RelayedTensor(BEFORE, carry.forward))]
    moved = Roster(((member("other"),), (*ROSTER.stages[1], member("before", 1))), ROSTER.trainers)
    peer.hear(RelayTensor(MATE, Forward(microbatch(0, Epoch(2, 0)), 1, FIRST_ATTEMPT)), BEFORE, (Ref(3), Ref(4)))
    actions = peer.hear(OpenStep(1, Epoch(2, 0), moved, LINEAGE))
    assert not messages(actions, RelayedTensor)
    assert of_type(actions, Forget) == [Forget(BEFORE)]
    assert not messages(peer.hear(carry, BEFORE, (Ref(5), Ref(6))), RelayedTensor), "of an epoch that is over"


def test_a_peer_joins_again_when_its_leader_sends_what_cannot_be() -> None:
    peer = Peer()
    actions = peer.hear(Granted(1, 2, 0, ()))
    assert not of_type(actions, LoadState)
    [rejoin] = of_type(actions, Rejoin)
    assert "Granted.stage cannot be 2" in rejoin.reason


def test_after_an_exception_the_step_starts_over_without_its_cause() -> None:
    """What was half changed belongs to the epoch; the next one begins with nothing."""
    peer = Peer()
    actions = peer.event(Mishandled(BEFORE, "sent Forward, which could not be handled (KeyError)"))
    assert [suspect.process for _, suspect in messages(actions, Suspect)] == [BEFORE]
    assert [unrepairable.epoch for _, unrepairable in messages(actions, Unrepairable)] == [EPOCH]
    assert of_type(peer.event(Mishandled(LEADER, "sent Prepare, which could not be handled (KeyError)")), Rejoin)


def test_a_reason_is_cut_where_it_is_made() -> None:
    peer = Peer()
    actions = peer.event(Mishandled(BEFORE, "x" * (1 << 20)))
    assert [len(suspect.reason) for _, suspect in messages(actions, Suspect)] == [REASON_MAX]


# --- a trainer that leads ---------------------------------------------------------------------------------------------


class Lead:
    """A leader whose step has a peer on each of its two stages."""

    def __init__(self) -> None:
        me = member("t0", -1)
        rules = LeaderSettings(9, lambda step: 0.1, 0.0, "1.0", "run", from_seed=True, new_lineage=lambda: "new")
        source = MicrobatchSource(LEADER, PLAN.microbatches, dispatcher_for(PLAN, LEADER, 0))
        join = Join("trainer", "1.0", "run", me)
        lead = Leader(me, PLAN, rules, 1, 0, 0)
        self.machine = TrainerMachine(me, LeaderLease(LEADER), PLAN, rules, source, join, lead=lead)
        self.machine.start(0.0)
        peers = (("me", 1), ("mate", 1), ("before", 0))
        for name, stage in peers:
            self.hear(Join("peer", "1.0", "run", member(name, stage)), process(name))
        for name, stage in peers:
            self.hear(Ready(stage, 0, "x", 4), process(name))
        assert self.lead.step is not None

    @property
    def lead(self) -> Leader:
        assert self.machine.lead is not None
        return self.machine.lead

    def hear(self, message: Message, sender: ProcessId) -> list[Action]:
        return self.machine.handle(Received(sender, message), 0.0)


@pytest.mark.parametrize(
    "message",
    [
        Done(microbatch(0), 0, FIRST_ATTEMPT),
        Done(microbatch(0), 1, FIRST_ATTEMPT, NAN, 1),
        Heartbeat(queued=-1),
        Ready(1, 99, "x", 4),
        Committed(EPOCH, 7),
        Suspect(ME, "I cannot reach myself"),
        LoadFailed(1, 0, "x" * (1 << 20)),
    ],
)
def test_a_leader_puts_out_who_sends_what_cannot_be_and_nobody_else(message: Message) -> None:
    leader = Lead()
    actions = leader.hear(message, ME)
    assert [to for to, _ in messages(actions, Evicted)] == [ME]
    assert of_type(actions, Forget) == [Forget(ME)]
    assert sorted(leader.lead.membership.known) == sorted([BEFORE, MATE, LEADER])
    assert leader.lead.step is not None
    assert leader.lead.step.phase == "working"


def test_no_sum_of_what_may_be_reported_is_more_than_may_be_told() -> None:
    """One peer alone, on the last stage, cannot make the leader send what everybody refuses of it."""
    tokens, loss = COUNT_MAX // PLAN.microbatches, LOSS_MAX / 10
    reported = Done(microbatch(0), 1, FIRST_ATTEMPT, loss, tokens)
    assert cannot_be(reported) == ""
    ledger = Ledger(PLAN.stages, PLAN.microbatches)
    for index in range(PLAN.microbatches):
        ledger.done(ME, replace(reported, microbatch=microbatch(index)))
    assert cannot_be(Prepare(1, EPOCH, 1, (), (), Tally(ledger.loss, ledger.tokens, 0))) == ""
    assert cannot_be(replace(reported, tokens=tokens + 1)) == f"Done.tokens cannot be {tokens + 1}"
    assert "Done.loss_sum" in cannot_be(replace(reported, loss_sum=-2 * loss))


def test_who_cannot_join_as_it_says_is_told_why() -> None:
    leader = Lead()
    actions = leader.hear(Join("peer", "1.0", "run", member("x"), speed=1e300), STRANGER)
    [(to, refused)] = messages(actions, Refused)
    assert to == STRANGER
    assert "Join.speed cannot be 1e+300" in refused.reason


def test_a_leader_starts_the_step_over_without_who_made_it_raise() -> None:
    leader = Lead()
    step = leader.lead.step
    actions = leader.machine.handle(Mishandled(ME, "sent Done, which could not be handled (KeyError)"), 0.0)
    assert [to for to, _ in messages(actions, Evicted)] == [ME]
    assert leader.lead.step is not None
    assert leader.lead.step is not step
    assert leader.lead.epoch == Epoch(1, 0)
    assert ME not in leader.lead.step.roster.id_set


def test_what_strangers_send_is_dropped_with_its_bytes() -> None:
    leader = Lead()
    event = Received(STRANGER, Heartbeat(queued=-1), (Ref(7),))
    actions = leader.machine.handle(event, 0.0)
    assert of_type(actions, Release) == [Release((Ref(7),))]
    assert of_type(actions, Forget) == [Forget(STRANGER)]
    assert leader.lead.step is not None
