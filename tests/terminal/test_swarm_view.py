"""`swarmflow status --watch`: a swarm on terminals of several sizes."""

from __future__ import annotations

import pytest

from swarmflow.terminal.shown_run import ShownEvent, shown_run
from swarmflow.terminal.swarm_view import SwarmView
from tests.terminal.views import drawn, peer, view

EVENTS = [ShownEvent(number, 1e9 + number, "died", "warning", f"p{number} is gone") for number in range(30)]


def test_it_shows_the_run_its_stages_peers_and_events() -> None:
    loading = peer(3, "loading", summary={"loading_bytes": 10**7, "loading_total_bytes": 4 * 10**7, "reach": "relay"})
    run = shown_run(view([peer(1), peer(2)], [loading], []))
    text = drawn(SwarmView(run, [3.0, 2.5, 2.31], EVENTS).draw(140, 40), 140, 40)
    for part in (
        "shakespeare   running   step 12 of 1,000",
        "13 min 40 s left",
        "loss 2.3100 █",
        "8,120 tokens/s   1.20 s a step   1 trainer, 3 peers   version 8 on disk",
        "trainers first1.0001 at 10.0.0.1 (leads)",
        "peer01.0001  ● serving",
        "67%",
        "◔ loading 25% of 40.0 MB",
        "relayed",
        "2  nobody",
        "p29 is gone",
    ):
        assert part in text


def test_it_says_what_the_run_waits_for_and_since_when() -> None:
    run = shown_run(view([peer(1)], [], phase="gathering", waiting_for="a peer for stage 1", waiting_s=62.0))
    assert "waits for a peer for stage 1  1 min 2 s" in drawn(SwarmView(run).draw(100, 30), 100, 30)


def test_it_says_that_nobody_answers_and_of_when_the_picture_is() -> None:
    text = drawn(SwarmView(None, trouble="nobody has answered within 3.5 s").draw(100, 30), 100, 30)
    assert "no answer nobody has answered within 3.5 s; it is asked again" in text
    run = shown_run(view([peer(1)]))
    shown = SwarmView(run, trouble="nobody has answered", shown_s=1e9).draw(100, 30)
    assert "nobody has answered (what is shown is of " in drawn(shown, 100, 30)


@pytest.mark.parametrize(("width", "rows"), [(40, 12), (60, 16), (80, 24), (110, 30), (200, 60)])
@pytest.mark.parametrize(("stages", "each"), [(1, 1), (8, 125), (60, 20), (3, 0)])
def test_it_fits_the_screen_whatever_the_swarm(width: int, rows: int, stages: int, each: int) -> None:
    peers = [[peer(number, "failed" if number == 7 else "serving") for number in range(each)] for _ in range(stages)]
    lines = drawn(SwarmView(shown_run(view(*peers)), [3.0, 2.0], EVENTS).draw(width, rows), width, rows).splitlines()
    assert len(lines) <= rows
    assert max(map(len, lines)) <= width
    assert any("stage" in line for line in lines)


def test_of_a_thousand_peers_it_lists_those_that_do_not_serve_and_who_did_most() -> None:
    run = shown_run(view([peer(number, "loading" if number == 5 else "serving") for number in range(1000)], [peer(1)]))
    text = drawn(SwarmView(run).draw(120, 13), 120, 13)
    assert "3 of 1,001 peers: first those that do not serve, then who did most" in text
    listed = [line.split()[1] for line in text.splitlines()[-3:]]
    assert listed == ["peer05.0001", "peer999.0001", "peer998.0001"]
    [stage] = [line.split() for line in text.splitlines() if line.split()[:2] == ["0", "1,000"]]
    assert stage[2:4] == ["999", "1"]
