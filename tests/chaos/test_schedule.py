"""The schedule of faults: the same for the same seed, at the rate asked for, and sparing whom it must spare."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from swarmflow.chaos.schedule import MOMENT_MAX, PAUSE_S_MAX, PAUSE_S_MIN, TRAINER, Fault, Schedule, ServingProcess

STAGES = 3
PEERS = [ServingProcess(f"peer-{number}", number % STAGES) for number in range(6)]
TRAINERS = [ServingProcess(f"trainer-{number}", TRAINER) for number in range(2)]
OPENINGS = range(2000)


def all_faults(schedule: Schedule, serving: list[ServingProcess]) -> list[Fault]:
    return [fault for step in OPENINGS for fault in schedule.at_opening(step, serving)]


def test_the_order_in_which_processes_are_seen_changes_nothing() -> None:
    schedule, serving = Schedule(7, 0.3), PEERS + TRAINERS
    shuffled = serving.copy()
    Random(1).shuffle(shuffled)
    assert all_faults(schedule, serving) == all_faults(schedule, shuffled)


def test_another_seed_and_another_rate_are_other_schedules() -> None:
    one = all_faults(Schedule(7, 0.3), PEERS)
    assert one != all_faults(Schedule(8, 0.3), PEERS)
    assert one != all_faults(Schedule(7, 0.31), PEERS)


def test_what_happens_to_one_does_not_depend_on_the_others() -> None:
    schedule = Schedule(3, 0.2, lose_stage=True)
    alone = all_faults(schedule, PEERS[:1])
    assert alone
    assert alone == [fault for fault in all_faults(schedule, PEERS + TRAINERS) if fault.victim == PEERS[0]]


def test_each_process_is_hit_at_the_rate() -> None:
    many = [ServingProcess(f"peer-{number}", 0) for number in range(10)] + TRAINERS
    faults = all_faults(Schedule(0, 0.2), many)
    for process in many:
        hits = sum(fault.victim == process for fault in faults)
        assert abs(hits / len(OPENINGS) - 0.2) < 0.04, process


def test_at_rate_0_nobody_is_hit_and_at_rate_1_everybody_who_may_be() -> None:
    assert all_faults(Schedule(0, 0.0), PEERS + TRAINERS) == []
    hit = {fault.victim for fault in Schedule(0, 1.0, lose_stage=True).at_opening(4, PEERS + TRAINERS)}
    assert hit == {*PEERS, *TRAINERS}


def test_one_peer_of_each_stage_is_spared() -> None:
    for step in OPENINGS:
        hit = {fault.victim for fault in Schedule(0, 0.7).at_opening(step, PEERS)}
        for stage in range(STAGES):
            assert any(peer not in hit for peer in PEERS if peer.stage == stage)
    assert Schedule(0, 1.0).at_opening(0, PEERS[:STAGES]) == ()


def test_trainers_are_spared_where_that_is_asked_for() -> None:
    hit = {fault.victim.stage for fault in all_faults(Schedule(0, 0.5, trainers=False), PEERS + TRAINERS)}
    assert TRAINER not in hit


def test_every_kind_moment_and_pause_comes_up() -> None:
    faults = all_faults(Schedule(0, 0.3), PEERS + TRAINERS)
    both = {"kill", "stop", "drain", "block", "fill", "corrupt"}
    assert {fault.kind for fault in faults if fault.victim in PEERS} == {*both, "spoil"}
    assert {fault.kind for fault in faults if fault.victim in TRAINERS} == {*both, "stall"}
    assert 0 <= min(fault.place for fault in faults) < 0.05 < 0.95 < max(fault.place for fault in faults) < 1
    moments = [fault.moment for fault in faults]
    assert 0 <= min(moments) < 0.05
    assert MOMENT_MAX - 0.05 < max(moments) <= MOMENT_MAX
    pauses = [fault.pause_s for fault in faults if fault.kind == "stop"]
    assert PAUSE_S_MIN <= min(pauses) < 1
    assert PAUSE_S_MAX / 2 < max(pauses) <= PAUSE_S_MAX


def test_only_a_peer_that_ends_is_replaced() -> None:
    faults = all_faults(Schedule(0, 0.3), PEERS + TRAINERS)
    for fault in faults:
        if fault.kind not in ("kill", "drain") or fault.victim.stage == TRAINER:
            assert not fault.fresh
            assert fault.again_s is None
    ending = [fault for fault in faults if fault.kind in ("kill", "drain") and fault.victim.stage != TRAINER]
    assert {fault.fresh for fault in ending} == {True, False}
    assert {fault.again_s is None for fault in ending} == {True, False}


def test_who_serves_another_stage_by_now_is_still_drawn_alike() -> None:
    """A peer may move between two runs of one seed: its own luck stays the same."""
    moved = [replace(peer, stage=(peer.stage + 1) % STAGES) for peer in PEERS]
    before, after = Schedule(5, 0.4, lose_stage=True), Schedule(5, 0.4, lose_stage=True)
    names = [
        [(f.victim.name, f.kind, f.moment) for f in all_faults(s, who)] for s, who in ((before, PEERS), (after, moved))
    ]
    assert names[0] == names[1]
