"""The peer's machine: its life from joining to leaving, and messages that come early, late or wrong."""

from __future__ import annotations

import pytest

from swarmflow.core.protocol.actions import Count, Exit, Forget, LoadState, Rejoin, Reset, RunForward, RunLoss, Send
from swarmflow.core.protocol.events import DrainAsked, LossComputed, Lost, StateLoaded, StateNotLoaded, Tick
from swarmflow.core.protocol.messages import (
    Commit,
    Denied,
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
    Ready,
    Refused,
    Released,
    RosterDelta,
    Suspect,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, Roster
from tests.core.peer_bench import (
    ELEMENTS,
    GRADIENT,
    INPUT,
    LEADER,
    MATE,
    ME,
    RESULT,
    ROSTER,
    STRANGER,
    TALLY,
    TARGETS,
    Bench,
)
from tests.core.samples import EPOCH, LINEAGE, member, messages, microbatch, of_type, released


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
