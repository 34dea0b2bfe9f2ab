"""A run as text: what strangers' names do to a terminal, and what fits on one."""

from __future__ import annotations

import asyncio
import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from swarmflow.clean_text import clean
from swarmflow.runtime.operations.logs import set_up_logging
from swarmflow.runtime.operations.status import _show
from swarmflow.runtime.operations.watch_text import PEERS_MAX, duration, screen, sparkline
from swarmflow.runtime.operations.watching import LiveFeed
from swarmflow.view.watching import Question
from tests.page.views import PretendedRun

HOSTILE = "\x1b[2J\x1b[31m[bold]x[/bold]\r\n\u202egnp.exe\u2028\ud800"


def lines(run: PretendedRun, height: int = 60) -> list[str]:
    """What a terminal of 100 columns shows of a run."""
    feed = LiveFeed(_nobody)
    answer = {"timeline": "t", "view": run.view(), "events": run.events, "steps": run.lines()}
    feed.mirror.take(answer)
    feed.error = run.error
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None, highlight=False)
    console.print(screen(feed, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


async def _nobody(question: Question) -> bytes:
    raise AssertionError("a screen asks nobody")


def test_it_shows_the_state_the_peers_and_what_happened() -> None:
    run = PretendedRun(waiting="a peer for stage 1")
    run.add("died", "p1n0 is gone: its connection broke")
    shown = lines(run)
    assert shown[0] == "pretended: gathering, step 40 of 100, loss 2.5000, 12,346 tokens/s, 2 min left"
    assert shown[1].startswith("loss █")
    assert "waiting for a peer for stage 1, for 4 s" in shown
    assert sum("serving" in line for line in shown) == 6
    assert shown[-1].split() == ["died", "p1n0", "is", "gone:", "its", "connection", "broke"]
    run.stages, run.error = (2, 0, 2), "its trainers are electing a leader"
    shown = lines(run)
    assert shown[0] == "no answer: its trainers are electing a leader"
    assert any("nobody" in line for line in shown)


def test_of_a_thousand_peers_it_shows_the_stages() -> None:
    shown = lines(PretendedRun(stages=(100,) * 10), height=50)
    assert len(shown) < 50
    assert sum(" 100 " in line for line in shown) >= 10
    assert PEERS_MAX < 1000


def test_what_strangers_write_moves_no_cursor_and_is_no_markup() -> None:
    run = PretendedRun(waiting=HOSTILE)
    run.add(HOSTILE, HOSTILE, HOSTILE)
    run.error = HOSTILE
    text = "\n".join(lines(run))
    assert "\x1b[2J" not in text
    assert "\u202e" not in text
    assert "\\x1b[2J\\x1b[31m[bold]x[/bold]\\r\\n\\u202egnp.exe" in text


def test_the_status_shows_them_as_text_too(capsys: pytest.CaptureFixture[str]) -> None:
    _show(PretendedRun(waiting=HOSTILE).view() | {"run": HOSTILE})
    out = capsys.readouterr().out
    assert "\x1b[2J" not in out
    assert "[bold]" in out


def test_the_log_shows_them_as_text_too(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger("swarmflow")
    handlers, propagate, level = root.handlers[:], root.propagate, root.level
    try:
        set_up_logging()
        logging.getLogger("swarmflow").warning("refused: %s", HOSTILE)
        err = capsys.readouterr().err
    finally:
        root.handlers[:], root.propagate = handlers, propagate
        root.setLevel(level)
    assert err.count("\n") == 1
    assert "refused: \\x1b[2J" in err


@given(st.text())
def test_clean_text_is_one_line_that_says_the_same(text: str) -> None:
    cleaned = clean(text)
    assert len(cleaned.splitlines()) <= 1
    assert not any(ord(character) < 32 or ord(character) == 127 for character in cleaned)
    assert text.isprintable() is False or cleaned == text


def test_times_and_curves_are_short() -> None:
    assert [duration(seconds) for seconds in (3.4, 300, 7200)] == ["3 s", "5 min", "2.0 h"]
    assert sparkline([1.0, None, 3.0]) == "▁ █"
    assert sparkline([]) == "-"


@pytest.mark.asyncio
async def test_a_feed_asks_once_however_many_look_and_says_why_there_is_no_answer() -> None:
    asked: list[Question] = []

    async def ask(question: Question) -> bytes:
        asked.append(question)
        return b"no JSON"

    feed = LiveFeed(ask)
    await asyncio.gather(*(feed.run(0) for _ in range(50)))
    assert len(asked) == 1
    assert feed.error is not None
    assert "no JSON" in feed.error
