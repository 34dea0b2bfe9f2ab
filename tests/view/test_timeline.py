"""The timeline of a run, and its mirror at those who watch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.core.protocol.actions import Log
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.view.timeline import ANSWER_STEPS_MAX, EVENTS_MAX, STEPS_MAX, Timeline
from swarmflow.view.watching import Mirror, Question, answer_to
from tests.core.samples import process


def line(step: int, seconds: float = 1.0) -> dict[str, Any]:
    return {"step": step, "loss": 2.0, "time": 1000.0 + step * seconds}


def test_a_line_of_the_log_is_an_event_if_it_has_a_kind() -> None:
    timeline = Timeline("t")
    timeline.log(Log("info", "a"), 3, 1.0)
    timeline.log(Log("warning", "b is gone", EventKind.DIED, process("b"), 2), 3, 2.0)
    assert timeline.events_after(0) == [
        {
            "seq": 1,
            "time": 2.0,
            "kind": "died",
            "level": "warning",
            "text": "b is gone",
            "peer": str(process("b")),
            "stage": 2,
            "step": 3,
        }
    ]
    assert timeline.events_after(1) == []


def test_old_events_and_every_second_of_many_old_steps_go() -> None:
    timeline = Timeline()
    for number in range(EVENTS_MAX + 5):
        timeline.add(EventKind.OTHER, str(number), 0, 0.0)
    assert [event["seq"] for event in timeline.events_after(0)] == list(range(6, EVENTS_MAX + 6))
    for step in range(STEPS_MAX + 1):
        timeline.committed(line(step))
    kept = [known["step"] for known in timeline.steps]
    assert len(kept) <= STEPS_MAX
    assert kept[-STEPS_MAX // 2 :] == list(range(STEPS_MAX // 2 + 1, STEPS_MAX + 1))
    assert len(timeline.steps_after(0)) == ANSWER_STEPS_MAX
    assert [known["step"] for known in timeline.steps_after(STEPS_MAX - 1)] == [STEPS_MAX - 1, STEPS_MAX]


def test_a_step_that_is_done_again_replaces_what_came_of_it_before() -> None:
    timeline = Timeline()
    for step in (0, 1, 2, 3, 1):
        timeline.committed(line(step))
    assert [known["step"] for known in timeline.steps] == [0, 1]


def test_waiting_lasts_while_only_the_numbers_in_its_reason_change() -> None:
    timeline = Timeline()
    assert timeline.wait("a peer for stage 1", 0, 10.0) == 0.0
    assert timeline.wait("a peer for stage 2", 0, 13.0) == 3.0
    assert timeline.wait("a disk", 0, 14.0) == 0.0
    assert timeline.wait("", 0, 15.0) == 0.0
    assert timeline.wait("a disk", 0, 16.0) == 0.0
    assert [event["text"] for event in timeline.events] == [
        "the run waits for a peer for stage 1",
        "the run waits for a disk",
        "the run waits for a disk",
    ]


def test_the_time_left_follows_from_the_last_steps() -> None:
    timeline = Timeline()
    assert timeline.left_s(100) is None
    for step in range(30):
        timeline.committed(line(step, seconds=2.0))
    assert timeline.left_s(100) == 140.0
    assert timeline.left_s(30) == 0.0


@given(st.lists(st.tuples(st.sampled_from(("event", "step", "ask", "leader")), st.integers(0, 40)), max_size=60))
def test_a_mirror_has_every_event_and_step_once_from_one_leader_after_another(acts: list[tuple[str, int]]) -> None:
    leader, mirror = Timeline("0"), Mirror()
    told: list[str] = []
    for number, (what, value) in enumerate(acts):
        match what:
            case "event":
                leader.add(EventKind.OTHER, f"event {number}", 0, 0.0)
            case "step":
                leader.committed(line(value))
            case "ask":
                told += [event["text"] for event in answer_to(mirror.question, {}, leader)["events"]]
                mirror.take(answer_to(mirror.question, {}, leader))
                steps = [known["step"] for known in leader.steps]
                assert not steps or [known["step"] for known in mirror.own.steps][-len(steps) :] == steps
            case "leader":
                leader = Timeline(str(number))
    assert [event["text"] for event in mirror.own.events] == told
    assert [event["seq"] for event in mirror.own.events] == list(range(1, len(told) + 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"timeline": "t", "view": [], "events": [], "steps": []},
        {"timeline": "t", "view": {}, "events": [{}], "steps": []},
        {"timeline": "t", "view": {}, "events": 3, "steps": []},
        {"timeline": "t", "view": {}, "events": [], "steps": [{"step": "x", "time": 0}]},
    ],
)
def test_an_answer_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    mirror = Mirror()
    with pytest.raises(ValueError, match="cannot be read"):
        mirror.take(wrong)
    assert mirror.question == Question()
