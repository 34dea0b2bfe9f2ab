"""Views that come from another process are checked, and what peers write into them is neutralised."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from swarmflow.core.pipeline.flight_table import FlightTable
from swarmflow.core.protocol.actions import Log
from swarmflow.core.protocol.messages import LoadFailed, PeerSummary
from swarmflow.core.protocol.types import ProcessId
from swarmflow.terminal.changes import Changes
from swarmflow.terminal.process_view import ProcessView
from swarmflow.terminal.shown_run import NUMBER_MAX, ShownEvent, loss_of, shown_event, shown_run
from swarmflow.terminal.swarm_view import SwarmView
from swarmflow.view.run_view import view_of
from swarmflow.view.timeline import Timeline
from swarmflow.view.watching import brief
from tests.core.samples import of_type
from tests.core.test_leader import Bench
from tests.terminal.views import drawn, peer, view

HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/]\n12:00:00 forged\u202e\x9b31m\r[link=file:///etc/passwd]"
STYLES = re.compile(r"\x1b\[[\d;]*m")


def assert_clean(text: str) -> None:
    """Fail where anything but our own colours and line breaks acts on a terminal, or markup was read as such."""
    plain = STYLES.sub("", text)
    assert all(character.isprintable() or character == "\n" for character in plain)
    assert not any(line.lstrip().startswith("12:00:00 forged") for line in plain.splitlines())
    assert "[bold red]x[/]" in plain


def test_a_peer_with_a_name_address_and_reason_of_markup_and_escapes_is_shown_as_plain_text() -> None:
    bench, timeline = Bench(stages=2), Timeline("name")
    hostile = ProcessId(HOSTILE[-6:] + HOSTILE, 1)
    bench.join(hostile, 0)
    known = bench.leader.membership.known[hostile]
    known.member = replace(known.member, addresses=(f"/dns4/{HOSTILE.replace('/', '')}/tcp/1/p2p/x",))
    actions = bench.hear(hostile, LoadFailed(0, 0, HOSTILE, known.grants))
    actions += bench.hear(hostile, PeerSummary(reach=HOSTILE))
    for action in of_type(actions, Log):
        timeline.log(action, 0, 1e9)
    assert any(HOSTILE in action.text for action in of_type(actions, Log))
    seen = view_of(bench.leader, FlightTable(), timeline, HOSTILE, HOSTILE, 1e9)
    seen["phase"], seen["waiting_for"] = "gathering", HOSTILE
    for each in (seen, brief(seen)):
        run = shown_run(each)
        events = [shown_event(event) for event in timeline.events]
        trouble = shown_event({"text": HOSTILE}).text
        for colour in (False, True):
            assert_clean(drawn(SwarmView(run, (), events, trouble).draw(160, 40), 160, 40, colour=colour))
            shown = ProcessView("peer", "abcdef", run, (), events, trouble)
            assert_clean(drawn(shown.draw(160, 40), 160, 40, colour=colour))
        assert_clean("\n".join(Changes().lines(run, events, "", 1e9)))


@pytest.mark.parametrize(
    "changed",
    [
        {"step": "many"},
        {"loss": [1.0]},
        {"stages": [{"stage": 0, "peers": "none"}]},
        {"trainers": [{"leads": "yes"}]},
        {"stages": [[[[[[[[[[1]]]]]]]]]]},
    ],
)
def test_what_is_no_view_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"Expected"):
        shown_run(view([peer(1)], **changed))
    assert shown_event({"seq": "one"}) == ShownEvent()


def test_numbers_that_cannot_be_are_drawn_all_the_same() -> None:
    wild = peer(1, held=10**30, summary={"microbatches": 10**300, "memory_bytes": -(10**300), "wasted_s": 1e308})
    stages = [{"stage": -(10**40), "phases": {"serving": 10**12, "x": -(10**12)}, "peers": [wild]}]
    run = shown_run(view(stages=stages, step=-5, left_s=1e308, step_seconds=-1.0, tokens_per_s=1e308, waiting_s=-1.0))
    for picture in (SwarmView(run), ProcessView("peer", run=run)):
        assert "shakespeare" in drawn(picture.draw(100, 30), 100)


def test_fields_of_a_later_release_are_ignored_and_missing_ones_are_empty() -> None:
    assert shown_run({"step": 10**400, "steps": -(10**400)}).step == NUMBER_MAX
    assert loss_of({"loss": 10**400}) is None
    run = shown_run({"run": "r", "new": {"field": 1}, "stages": [{"stage": 0}]})
    assert (run.run, run.stages[0].working, run.peers) == ("r", 0, 0)
