"""What a trainer or peer shows of itself below its log."""

from __future__ import annotations

import time

import pytest

from swarmflow import activity
from swarmflow.activity import doing
from swarmflow.terminal.contribution import contribution
from swarmflow.terminal.process_view import ROWS_MAX, ProcessView
from swarmflow.terminal.shown_run import ShownEvent, ShownSummary, shown_run
from swarmflow.view.watching import brief
from tests.terminal.views import drawn, peer, view


def test_from_the_first_second_it_says_what_takes_long() -> None:
    shown = ProcessView("peer")
    assert "swarmflow peer · 0 s ─" in drawn(shown.draw(60, 20), 60)
    with doing("joining the DHT", lambda: "2 of 3 answer"):
        now = activity.current()
        assert now is not None
        now.since_s -= 65
        assert "now joining the DHT: 2 of 3 answer  1 min 5 s" in drawn(shown.draw(60, 20), 60)


def test_it_shows_the_run_the_peers_of_each_stage_and_what_is_wrong_with_some() -> None:
    loading = peer(4, "loading", summary={"loading_bytes": 10**7, "loading_total_bytes": 4 * 10**7})
    run = shown_run(brief(view([peer(1), peer(2), loading], [peer(3), peer(5, "failed")], [])))
    assert [stage.working for stage in run.stages] == [2, 1, 0]
    text = drawn(ProcessView("trainer", "abcdef", run, [3.0, 2.0]).draw(100, 30), 100)
    assert "stage 0 ●●◔ 1 loading   stage 1 ●✗ 1 failed   stage 2 nobody" in text
    assert "peer peer04.0001 loads stage 0: 10.0 MB of 40.0 MB" in text
    assert "peer peer05.0001 could not load stage 1" in text
    assert "1 trainer, 5 peers" in text


def test_it_shows_why_the_run_waits_what_happened_and_what_this_peer_does() -> None:
    run = shown_run(brief(view([peer(1)], [], phase="gathering", waiting_for="a peer for stage 1", waiting_s=9.0)))
    events = [ShownEvent(1, 1e9, "died", "warning", "peer02 is gone: closed the connection")]
    own = ("this peer serves stage 0 at version 12, holds 3 of 8 microbatches",)
    text = drawn(ProcessView("peer", "abcdef", run, (), events, "", own).draw(100, 30), 100)
    assert "waits for a peer for stage 1  9 s" in text
    assert "peer02 is gone: closed the connection" in text
    assert "this peer serves stage 0 at version 12   holds 3 of 8 microbatches" in text


def test_it_says_why_there_is_no_news() -> None:
    shown = ProcessView("peer", trouble="the trainers are electing a leader")
    assert "waits for the state of the run: the trainers are electing" in drawn(shown.draw(80, 20), 80)
    shown.run, shown.fresh_s = shown_run(view([peer(1)])), time.monotonic() - 65
    text = drawn(shown.draw(100, 20), 100)
    assert "no news of the run for 1 min 5 s the trainers are electing a leader" in text


@pytest.mark.parametrize(("width", "rows"), [(40, 6), (60, 12), (100, 30), (200, 60)])
def test_it_leaves_room_for_the_log_and_shows_first_what_this_process_does(width: int, rows: int) -> None:
    run = shown_run(brief(view(*[[peer(number) for number in range(50)] for _ in range(40)])))
    events = [ShownEvent(number, 1e9, "died", "info", "gone") for number in range(9)]
    shown = ProcessView("peer", "abcdef", run, [3.0, 2.0], events, "", ("this peer serves stage 1",))
    lines = drawn(shown.draw(width, rows), width).splitlines()
    assert len(lines) <= min(ROWS_MAX, rows - 2)
    assert max(map(len, lines)) <= width
    assert rows < 12 or any("serves stage 1" in line for line in lines)


def test_a_contribution_is_one_line() -> None:
    summary = ShownSummary(812, 51_968, 65.0, 60.0, 3.0, 10**6, 2 * 10**6, 812_345_678, reach="relay")
    assert contribution(summary) == (
        "has done 812 microbatches, 51,968 tokens, 1 min 5 s of computing, 3 s of it in vain, sent 1.0 MB, "
        "received 2.0 MB, 812.3 MB of memory, reached through a relay"
    )
    assert "in vain" not in contribution(ShownSummary(812, 51_968, 65.0))
