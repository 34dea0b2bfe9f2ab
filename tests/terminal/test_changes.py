"""A run as lines, where there is no terminal."""

from __future__ import annotations

from swarmflow.terminal.changes import RECENT, Changes
from swarmflow.terminal.formats import clock
from swarmflow.terminal.shown_run import ShownEvent, shown_run
from tests.terminal.views import peer, view

NOW_S = 1e9
AT = clock(NOW_S)


def test_a_line_appears_when_something_has_changed_and_only_then() -> None:
    changes = Changes()
    run = shown_run(view([peer(1)], [peer(2, "loading")]))
    assert changes.lines(run, [], "", NOW_S) == [
        f"{AT} run shakespeare: running, 1 trainer",
        f"{AT} peers: stage 0: 1, stage 1: 1 not serving yet",
        f"{AT} running, step 12 of 1,000, loss 2.3100, 8,120 tokens/s, 13 min 40 s left",
    ]
    later = shown_run(view([peer(1)], [peer(2, "loading", held=5)], left_s=700.0))
    assert changes.lines(later, [], "", NOW_S) == []
    died = [ShownEvent(1, NOW_S - 1, "died", "warning", "peer02 is gone")]
    gone = shown_run(view([peer(1)], []))
    expected = [f"{clock(NOW_S - 1)} peer02 is gone", f"{AT} peers: stage 0: 1, stage 1: nobody"]
    assert changes.lines(gone, died, "", NOW_S) == expected
    assert changes.lines(gone, died, "", NOW_S) == []


def test_a_reason_to_wait_is_one_line_while_only_its_numbers_change() -> None:
    changes = Changes()
    first = shown_run(view([peer(1)], phase="gathering", waiting_for="2 of 8 hops"))
    assert f"{AT} waits for 2 of 8 hops" in changes.lines(first, [], "", NOW_S)
    later = shown_run(view([peer(1)], phase="gathering", waiting_for="3 of 8 hops"))
    assert changes.lines(later, [], "", NOW_S) == []


def test_no_answer_is_one_line_for_each_reason_and_an_answer_after_it_another() -> None:
    changes = Changes()
    assert changes.lines(None, [], "no trainer answers", NOW_S) == [
        f"{AT} no answer: no trainer answers; it is asked again"
    ]
    assert changes.lines(None, [], "no trainer answers", NOW_S) == []
    assert changes.lines(shown_run(view([peer(1)])), [], "", NOW_S)[0] == f"{AT} the run answers again"


def test_of_what_happened_before_the_first_look_the_newest_events_are_told() -> None:
    events = [ShownEvent(number, NOW_S, "joined", "info", f"event {number}") for number in range(1, 100)]
    lines = Changes().lines(shown_run(view([peer(1)])), events, "", NOW_S)
    assert [line for line in lines if "event" in line] == [
        f"{AT} event {number}" for number in range(100 - RECENT, 100)
    ]
