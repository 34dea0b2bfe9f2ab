"""The peer's machine: its life from joining to leaving, and messages that come early, late or wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.early_messages import EARLY_BYTES_MAX, EARLY_BYTES_OF_ALL_MAX, EARLY_MAX, EARLY_S
from swarmflow.core.machines.serving.peer_state import HOLD_COPIES_S, PeerSettings
from swarmflow.core.protocol.actions import (
    Action,
    Apply,
    Count,
    Exit,
    Forget,
    LoadState,
    Rejoin,
    Reset,
    RunForward,
    RunLoss,
    RunReplay,
    Seal,
    Send,
    SumPiece,
)
from swarmflow.core.protocol.events import (
    Applied,
    BlamedError,
    ComputeFailed,
    DrainAsked,
    Event,
    LossComputed,
    Lost,
    PieceFailed,
    Received,
    Replayed,
    Sealed,
    StateLoaded,
    StateNotLoaded,
    Tick,
)
from swarmflow.core.protocol.messages import (
    Backward,
    Commit,
    Committed,
    Denied,
    Done,
    Drain,
    Evicted,
    Finished,
    Forward,
    Granted,
    Heartbeat,
    Join,
    LeaderHeartbeat,
    LoadFailed,
    MemberFailed,
    Message,
    OpenStep,
    Prepare,
    Prepared,
    Ready,
    ReducePart,
    Refused,
    Released,
    RosterDelta,
    StepResult,
    Suspect,
    Tally,
    Unprepared,
    Unrepairable,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Attempt, Epoch, Group, Member, Plan, ProcessId, Ref, Roster
from tests.core.samples import EPOCH, LINEAGE, member, messages, microbatch, of_type, process, released

ME, MATE, LEADER, STRANGER = process("me"), process("mate"), process("t0"), process("x")
ROSTER = Roster(((member("mate"), member("me")),), (member("t0", -1),))
INPUT, TARGETS, GRADIENT = Ref(1), Ref(2), Ref(3)
ELEMENTS = (("stage-0", 10), ("tied", 10))
TALLY = Tally(2.0, 2, 0)
RESULT = StepResult(1, EPOCH, 2.0, 2, 1.0, 1.0, 0.1, 1, (2,), 0)


@dataclass
class Bench:
    """A peer of a run with one stage."""

    stay: bool = False
    now: float = 0.0
    peer: PeerMachine = field(init=False)

    def __post_init__(self) -> None:
        join = Join("peer", "1.0", "run", Member(ME, -1))
        self.peer = PeerMachine(ME, LeaderLease(LEADER), Plan(1, 2), PeerSettings(join, stay=self.stay))

    def event(self, event: Event) -> list[Action]:
        return self.peer.handle(event, self.now)

    def hear(self, message: Message, sender: ProcessId = LEADER, bodies: tuple[Ref, ...] = ()) -> list[Action]:
        return self.event(Received(sender, message, bodies))

    def serve(self, roster: Roster = ROSTER) -> list[Action]:
        self.hear(Granted(1, 0, 0, ()))
        self.event(StateLoaded(0, 0, "digest", 4, ELEMENTS))
        return self.hear(OpenStep(1, EPOCH, roster, LINEAGE))

    def work(self, index: int = 0) -> None:
        self.hear(Forward(microbatch(index), 0, FIRST_ATTEMPT), bodies=(INPUT, TARGETS))
        self.event(LossComputed(microbatch(index), 2.0, 1, GRADIENT))

    def prepare(self, ballot: int = 1, members: tuple[ProcessId, ...] = (ME,)) -> list[Action]:
        return self.hear(
            Prepare(1, EPOCH, ballot, ((0, FIRST_ATTEMPT),), (Group("stage-0", members, ballot=ballot),), TALLY)
        )


def test_it_joins_and_joins_again_until_it_is_heard() -> None:
    bench = Bench()
    assert [to for to, _ in messages(bench.event(Tick()), Join)] == [LEADER]
    assert not messages(bench.event(Tick()), Join)
    bench.now = bench.peer.next_deadline()
    assert messages(bench.event(Tick()), Heartbeat)
    bench.now = 5.0
    assert messages(bench.event(Tick()), Join)


def test_it_loads_what_it_is_granted_and_serves() -> None:
    bench = Bench()
    [load] = of_type(bench.hear(Granted(1, 0, 7, (member("mate"),))), LoadState)
    assert (load.stage, load.version) == (0, 7)
    [(_, ready)] = messages(bench.event(StateLoaded(0, 7, "digest", 4, ELEMENTS)), Ready)
    assert (ready.version, ready.capacity) == (7, 4)
    actions = bench.hear(OpenStep(1, Epoch(0, 7), ROSTER, LINEAGE))
    assert of_type(actions, Reset)
    assert bench.peer.phase == "member"


def test_it_expects_nothing_of_a_donor_that_is_gone() -> None:
    bench = Bench()
    bench.hear(Granted(1, 0, 7, (member("mate"),)))
    gone = MemberFailed(1, Epoch(0, 7), MATE, "silent")
    assert of_type(bench.hear(gone), Forget) == [Forget(MATE)]
    assert not bench.hear(gone, STRANGER)[1:], "only the leader tells"
    bench.event(StateLoaded(0, 7, "digest", 4, ELEMENTS))
    assert not of_type(bench.hear(gone), Forget)


def test_a_load_that_fails_is_told() -> None:
    bench = Bench()
    bench.hear(Granted(1, 0, 7, ()))
    [(to, failed)] = messages(bench.event(StateNotLoaded(0, 7, "no donor")), LoadFailed)
    assert (to, failed.reason) == (LEADER, "no donor")


def test_a_step_from_the_first_microbatch_to_the_update() -> None:
    bench = Bench()
    bench.serve()
    actions = bench.hear(Forward(microbatch(0), 0, FIRST_ATTEMPT), bodies=(INPUT, TARGETS))
    assert of_type(actions, RunLoss)
    assert messages(bench.event(LossComputed(microbatch(0), 2.0, 1, None)), Done)
    assert of_type(bench.prepare(), Seal)
    results = (("stage-0", 1.0, "x"),)
    assert messages(bench.event(Sealed(EPOCH, 1, results)), Prepared) == [(LEADER, Prepared(EPOCH, 1, results))]
    assert of_type(bench.hear(Commit(1, EPOCH, 1, 0.5, 0.1, RESULT)), Apply) == [Apply(EPOCH, 0.5, 0.1)]
    actions = bench.event(Applied(EPOCH))
    assert messages(actions, Committed) == [(LEADER, Committed(EPOCH, 1))]
    assert sorted(released(actions)) == [INPUT, TARGETS], "the journal is dropped"


def test_the_time_of_an_all_reduce_is_counted_where_there_is_one() -> None:
    for members, expected in (((ME, MATE), [Count("reduce_seconds", amount=2.5)]), ((ME,), [])):
        bench = Bench(now=4.0)
        bench.serve()
        bench.work()
        bench.prepare(members=members)
        bench.now = 6.5
        assert of_type(bench.event(Sealed(EPOCH, 1, (("stage-0", 1.0, "x"),))), Count) == expected


def test_it_asks_for_no_copies_from_the_ballot_until_its_results_are_told() -> None:
    bench = Bench(now=4.0)
    bench.serve()
    bench.work()
    assert not bench.peer.holds_copies(4.0)
    bench.prepare()
    assert bench.peer.holds_copies(4.0)
    assert not bench.peer.holds_copies(4.0 + HOLD_COPIES_S), "an all-reduce may take most of every step"
    bench.event(Sealed(EPOCH, 1, (("stage-0", 1.0, "x"),)))
    assert not bench.peer.holds_copies(4.0), "the commit may wait for copies"


def test_it_prepares_only_with_exactly_what_is_listed() -> None:
    bench = Bench()
    bench.serve()
    [(_, refused)] = messages(bench.prepare(), Unprepared)
    assert refused.reason == "0 accumulated, 1 listed"
    bench.work()
    assert of_type(bench.prepare(ballot=2), Seal)


def test_an_orphan_is_taken_away_before_the_all_reduce() -> None:
    bench = Bench()
    bench.serve()
    bench.work(0)
    bench.hear(Forward(microbatch(1), 0, FIRST_ATTEMPT), bodies=(Ref(8), Ref(9)))
    bench.event(LossComputed(microbatch(1), 2.0, 1, None))
    actions = bench.prepare()
    assert of_type(actions, RunReplay) == [RunReplay(microbatch(1), Ref(8), Ref(9), None, -1)]
    assert not of_type(actions, Seal)
    [(_, denied)] = messages(
        bench.hear(Forward(microbatch(1), 0, Attempt(repair=1)), bodies=(Ref(10), Ref(11))), Denied
    )
    assert denied.reason == "full", "nothing is accumulated while a ballot is under way"
    actions = bench.event(Replayed(microbatch(1), -1))
    assert sorted(released(actions)) == [Ref(8), Ref(9)]
    assert of_type(actions, Seal)


def test_an_orphan_that_is_being_computed_is_taken_away_when_it_is_there() -> None:
    bench = Bench()
    bench.serve()
    bench.work(0)
    bench.hear(Forward(microbatch(1), 0, FIRST_ATTEMPT), bodies=(Ref(8), Ref(9)))
    assert not of_type(bench.prepare(), Seal)
    actions = bench.event(LossComputed(microbatch(1), 2.0, 1, None))
    assert not messages(actions, Done)
    assert of_type(actions, RunReplay)
    assert of_type(bench.event(Replayed(microbatch(1), -1)), Seal)


def test_an_orphan_whose_bytes_are_unusable_is_dropped_and_the_ballot_goes_on() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.hear(Forward(microbatch(1), 0, FIRST_ATTEMPT), bodies=(Ref(4), Ref(5)))
    assert not of_type(bench.prepare(), Seal), "the other one is being computed, and not listed"
    actions = bench.event(ComputeFailed(microbatch(1), "too short"))
    assert not messages(actions, Unrepairable)
    assert [suspect.process for _, suspect in messages(actions, Suspect)] == [LEADER]
    assert of_type(actions, Seal)


def test_a_death_revokes_the_ballot_and_a_commit_without_it_is_left() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.prepare(members=(MATE, ME))
    bench.hear(ReducePart(EPOCH, 1, "stage-0", 0), sender=MATE, bodies=(Ref(20),))
    bench.hear(MemberFailed(1, EPOCH, MATE, "killed"))
    assert messages(bench.event(Sealed(EPOCH, 1, ())), Prepared) == []
    assert of_type(bench.hear(Commit(1, EPOCH, 1, 0.5, 0.1, RESULT)), Rejoin)


def test_who_sent_a_piece_that_does_not_decode_is_accused() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.prepare(members=(ME, MATE))
    part = ReducePart(EPOCH, 1, "stage-0", 0)
    assert of_type(bench.hear(part, sender=MATE, bodies=(Ref(20, 40),)), SumPiece)
    actions = bench.event(PieceFailed(EPOCH, 1, "stage-0", 0, (Ref(20, 40),)))
    assert [(to, suspect.process) for to, suspect in messages(actions, Suspect)] == [(LEADER, MATE)]
    assert released(actions) == [Ref(20, 40)]
    assert of_type(bench.hear(part, sender=MATE, bodies=(Ref(21, 40),)), SumPiece)


def test_who_sent_a_repair_before_the_ballot_that_a_death_has_revoked_sends_it_again() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.hear(Prepare(1, EPOCH, 1, (), (), TALLY))
    failed = MemberFailed(1, EPOCH, MATE, "killed", lost=((0, 0), (0, 1)))
    [(to, denied)] = messages(bench.hear(failed), Denied)
    assert (to, denied.microbatch, denied.reason) == (LEADER, microbatch(0), "orphan")


def test_what_comes_before_its_epoch_is_kept_and_then_done() -> None:
    bench = Bench()
    bench.hear(Granted(1, 0, 0, ()))
    bench.event(StateLoaded(0, 0, "digest", 4, ELEMENTS))
    early = bench.hear(Forward(microbatch(0), 0, FIRST_ATTEMPT), sender=LEADER, bodies=(INPUT, TARGETS))
    assert not of_type(early, RunLoss)
    assert of_type(bench.hear(OpenStep(1, EPOCH, ROSTER, LINEAGE)), RunLoss)


def test_what_a_kept_message_raises_is_blamed_on_its_sender() -> None:
    bench = Bench()
    other = process("t1")
    bench.hear(Granted(1, 0, 0, ()))
    bench.event(StateLoaded(0, 0, "digest", 4, ELEMENTS))
    without_attempt: Any = None
    kept = Received(other, Forward(microbatch(0), 0, without_attempt), (INPUT, TARGETS))
    bench.peer._early.keep(kept, 0.0)
    with pytest.raises(BlamedError) as caught:
        bench.hear(OpenStep(1, EPOCH, Roster(ROSTER.stages, (*ROSTER.trainers, member("t1", -1))), LINEAGE))
    assert (caught.value.process, caught.value.message) == (other, "Forward")


def test_one_sender_cannot_make_it_keep_more_than_a_bound_nor_shut_others_out() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    later = EPOCH.step + 1
    for index in range(EARLY_MAX):
        message = Forward(microbatch(0, Epoch(0, later)), 0, Attempt(denials=index))
        assert not released(bench.hear(message, sender=MATE, bodies=(Ref(100 + index), Ref(5000 + index))))
    over = Forward(microbatch(0, Epoch(0, later)), 0, FIRST_ATTEMPT)
    assert released(bench.hear(over, sender=MATE, bodies=(Ref(98), Ref(99)))) == [Ref(98), Ref(99)]
    assert not released(bench.hear(over, sender=LEADER, bodies=(Ref(96), Ref(97))))


def test_what_comes_early_is_bounded_in_bytes_of_one_sender_and_of_all() -> None:
    bench = Bench()
    bench.serve()
    half = EARLY_BYTES_MAX // 2
    early = [Forward(microbatch(0, Epoch(0, EPOCH.step + 1)), 0, Attempt(denials=index)) for index in range(3)]
    of_all = EARLY_BYTES_OF_ALL_MAX // EARLY_BYTES_MAX
    for sender in range(of_all):
        for number, message in enumerate(early):
            bodies = (Ref(10 * sender + number, half),)
            refused = released(bench.hear(message, sender=process(f"sender-{sender}"), bodies=bodies))
            assert refused == (list(bodies) if number == 2 else [])
    assert released(bench.hear(early[0], sender=MATE, bodies=(Ref(99, half),))) == [Ref(99, half)]
    assert not released(bench.hear(early[0], sender=MATE))


@pytest.mark.parametrize(("kept", "size_bytes"), [(EARLY_MAX, 0), (2, EARLY_BYTES_MAX // 2)])
def test_what_is_about_a_later_epoch_gives_way_to_what_is_due_next(kept: int, size_bytes: int) -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    for index in range(kept):
        far = Forward(microbatch(0, Epoch(0, EPOCH.step + 1000)), 0, Attempt(denials=index))
        assert not released(bench.hear(far, sender=MATE, bodies=(Ref(100 + index, size_bytes),)))
    following = Forward(microbatch(0, Epoch(0, EPOCH.step + 1)), 0, FIRST_ATTEMPT)
    assert released(bench.hear(following, sender=MATE, bodies=(Ref(99, 1),))) == [Ref(100 + kept - 1, size_bytes)]
    assert bench.peer.early[-1].message == following


def test_what_is_void_or_from_the_dead_is_released() -> None:
    bench = Bench()
    bench.serve()
    bench.hear(OpenStep(1, Epoch(1, 0), ROSTER, LINEAGE))
    stale = Forward(microbatch(0), 0, FIRST_ATTEMPT)
    assert released(bench.hear(stale, bodies=(INPUT, TARGETS))) == [INPUT, TARGETS]
    assert released(bench.hear(Backward(microbatch(0), 0, FIRST_ATTEMPT), sender=MATE, bodies=(Ref(5),))) == [Ref(5)]
    assert bench.peer.hops is not None
    assert bench.peer.hops.held == 0
    bench.hear(MemberFailed(1, Epoch(1, 0), MATE, "dead"))
    fresh = Forward(microbatch(0, Epoch(1, 0)), 0, FIRST_ATTEMPT)
    assert released(bench.hear(fresh, sender=MATE, bodies=(INPUT, TARGETS))) == [INPUT, TARGETS]


def test_what_a_stranger_sends_waits_for_the_leader_to_name_it_and_not_for_long() -> None:
    bench = Bench()
    bench.serve()
    assert not released(bench.hear(Forward(microbatch(0), 0, FIRST_ATTEMPT), STRANGER, (INPUT, TARGETS)))
    bench.now += EARLY_S
    assert released(bench.event(Tick())) == [INPUT, TARGETS]


@pytest.mark.parametrize(
    "message",
    [
        OpenStep(1, Epoch(5, 0), ROSTER, LINEAGE),
        MemberFailed(1, EPOCH, ME, "so I say"),
        Commit(1, EPOCH, 1, 1.0, 1.0, RESULT),
        Refused("no"),
        Granted(1, 0, 0, ()),
        Evicted("out"),
        Released(),
        Finished(3),
        Prepare(1, EPOCH, 1, (), (), TALLY),
    ],
)
def test_only_the_leader_leads(message: Message) -> None:
    bench = Bench()
    bench.serve()
    actions = bench.hear(message, sender=MATE)
    assert of_type(actions, Count) == [Count("messages_ignored", type(message).__name__)]
    assert not of_type(actions, Exit | Rejoin)  # type: ignore[arg-type]  # isinstance takes a union
    assert bench.peer.phase == "member"


def test_a_newer_grant_frees_what_was_held() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    actions = bench.hear(Granted(1, 0, 0, ()))
    assert sorted(released(actions)) == [INPUT, TARGETS, GRADIENT]


def test_it_drains_at_the_steps_edge_and_not_later_than_asked() -> None:
    bench = Bench()
    bench.serve()
    assert [to for to, _ in messages(bench.event(DrainAsked()), Drain)] == [LEADER]
    [(_, denied)] = messages(bench.hear(Forward(microbatch(0), 0, FIRST_ATTEMPT), bodies=(INPUT, TARGETS)), Denied)
    assert denied.reason == "draining"
    assert of_type(bench.hear(Released()), Exit)[0].ok
    bench = Bench()
    bench.serve()
    bench.event(DrainAsked())
    bench.now = 19.0
    bench.hear(MemberFailed(1, Epoch(9, 9), STRANGER, "keeps the leader heard"))
    bench.now = 30.0
    assert bench.peer.next_deadline() <= 30.0
    assert of_type(bench.event(Tick()), Exit)


def test_a_second_interrupt_leaves_at_once() -> None:
    bench = Bench()
    bench.serve()
    bench.event(DrainAsked())
    assert of_type(bench.event(DrainAsked()), Exit)


def test_who_is_alone_on_its_stage_works_on_while_it_drains() -> None:
    bench = Bench()
    bench.serve(Roster(((member("me"),),), (member("t0", -1),)))
    bench.event(DrainAsked())
    assert of_type(bench.hear(Forward(microbatch(0), 0, FIRST_ATTEMPT), bodies=(INPUT, TARGETS)), RunLoss)


def test_losses_are_reported_and_a_lost_or_silent_leader_is_left() -> None:
    bench = Bench()
    bench.serve()
    [(to, suspect)] = messages(bench.event(Lost(MATE, "reset")), Suspect)
    assert (to, suspect.process) == (LEADER, MATE)
    assert not messages(bench.event(Lost(STRANGER, "reset")), Suspect)
    assert of_type(bench.event(Lost(LEADER, "reset")), Rejoin)
    bench = Bench()
    bench.serve()
    for bench.now in range(1, 11):
        assert not of_type(bench.event(Tick()), Rejoin)
    bench.now = 11.0
    assert of_type(bench.event(Tick()), Rejoin), "there is no other trainer to wait for"


def test_who_has_slept_does_not_take_the_leader_for_dead() -> None:
    bench = Bench()
    bench.serve()
    bench.now = 60.0
    assert not of_type(bench.event(Tick()), Rejoin)


def test_it_ends_with_the_run_unless_told_to_stay() -> None:
    for stay in (False, True):
        bench = Bench(stay)
        bench.serve()
        assert bool(of_type(bench.hear(Finished(4)), Exit)) != stay


def test_a_refusal_ends_it_with_the_reason() -> None:
    [left] = of_type(Bench().hear(Refused("install 1.1")), Exit)
    assert (left.reason, left.ok) == ("install 1.1", False)


def test_a_peer_at_another_version_than_the_swarm_joins_again() -> None:
    bench = Bench()
    bench.serve()
    assert of_type(bench.hear(OpenStep(1, Epoch(0, 5), ROSTER, LINEAGE)), Rejoin)
    assert not of_type(bench.event(LossComputed(microbatch(0), 1.0, 1, None)), RunForward)
    assert not of_type(bench.hear(Forward(microbatch(0), 0, FIRST_ATTEMPT), bodies=(INPUT, TARGETS)), Send)


def test_a_link_from_the_leader_that_loses_messages_has_it_join_again() -> None:
    bench = Bench()
    bench.serve()
    assert not of_type(bench.hear(LeaderHeartbeat(1, EPOCH, sent=3)), Rejoin)
    assert not of_type(bench.hear(LeaderHeartbeat(1, EPOCH, sent=99), MATE), Rejoin), (
        "only the leader's words are missed"
    )
    assert of_type(bench.hear(LeaderHeartbeat(1, EPOCH, sent=5)), Rejoin), "four have come"


def test_what_comes_early_and_never_gets_its_epoch_is_given_up_in_the_end() -> None:
    bench = Bench()
    bench.serve()
    bench.hear(Forward(microbatch(0, Epoch(9, 0)), 0, FIRST_ATTEMPT), MATE, (INPUT, TARGETS))
    while bench.now < EARLY_S - 1.0:
        bench.now += 1.0
        epoch = Epoch(EPOCH.generation + int(bench.now), 0)
        assert INPUT not in released(bench.hear(OpenStep(1, min(epoch, Epoch(8, 0)), ROSTER, LINEAGE)))
    bench.now += 2.0
    assert released(bench.event(Tick())) == [INPUT, TARGETS]
    assert bench.peer.early == []


def test_a_step_that_is_told_by_its_changes_is_opened_like_any_other() -> None:
    bench = Bench()
    bench.serve()
    opened = bench.peer.epoch_view
    assert opened is not None
    version, epoch = bench.peer.version, opened.epoch
    again = RosterDelta(1, Epoch(epoch.generation + 1, epoch.step), epoch, (MATE,), (), LINEAGE)
    assert of_type(bench.hear(again), Reset)
    heard = bench.peer.epoch_view
    assert heard is not None
    assert MATE not in heard.opened.roster.id_set
    assert bench.peer.version == version


def test_who_has_not_heard_of_the_epoch_that_a_step_builds_on_joins_again() -> None:
    bench = Bench()
    bench.serve()
    assert of_type(bench.hear(RosterDelta(1, Epoch(7, 0), Epoch(6, 0), (), (), LINEAGE)), Rejoin)
