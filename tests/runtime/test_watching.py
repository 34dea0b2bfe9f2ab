"""What viewers are answered: one question however many look, and the brief view."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from swarmflow.errors import NetworkError
from swarmflow.runtime.operations.showing import RunDisplay
from swarmflow.runtime.operations.status import show
from swarmflow.runtime.operations.watching import ANSWERS_MAX, LiveFeed
from swarmflow.terminal.process_view import ProcessView
from swarmflow.view.timeline import Timeline
from swarmflow.view.watching import BRIEF_EVENTS, BRIEF_PEERS, BRIEF_STEPS, Question, answer_to, brief
from tests.runtime.nodes import until
from tests.terminal.test_shown_run import HOSTILE, assert_clean
from tests.terminal.views import peer, view


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


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("answer", [b'{"run":"\xff"}', b'{"loss":1e999}', b"[1]"], ids=["bytes", "number", "list"])
def test_a_status_that_cannot_be_read_is_an_error_of_its_trainer(answer: bytes, as_json: bool) -> None:
    with pytest.raises(NetworkError, match="the answer of the swarm cannot be read"):
        show(answer, as_json)


def test_a_status_as_json_acts_on_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    status = {"run": "\x9b31m\u202e\x1b[2J"}
    show(msgspec.json.encode(status), True)
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert json.loads(shown) == status


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "answer",
    [
        b'{"timeline": "x", "view": {}, "events": [], "steps": [{"seq": 1, "step": 1, "time": 1%s}]}' % (b"0" * 400),
        b"[" * 100_000,
        NetworkError(f"\x1b]0;title\x07{'x' * 1000}"),
    ],
    ids=["number", "depth", "escapes"],
)
async def test_no_answer_of_a_stranger_ends_those_who_watch(answer: bytes | Exception) -> None:
    async def ask(question: Question) -> bytes:
        if isinstance(answer, Exception):
            raise answer
        return answer

    feed = LiveFeed(ask)
    await feed.run(0)
    assert feed.error is not None
    assert feed.error.isprintable()
    assert len(feed.error) < 1000


@pytest.mark.asyncio
async def test_whatever_others_ask_each_gets_what_it_lacks_and_little_is_kept() -> None:
    timeline = Timeline("name")
    for number in range(30):
        timeline.committed({"step": number, "loss": 1.0, "time": float(number)})
        timeline.wait(f"reason {number}", number, float(number))
        timeline.wait("", number, number + 0.5)

    async def ask(question: Question) -> bytes:
        return msgspec.json.encode(answer_to(question, view([peer(1)]), timeline))

    feed = LiveFeed(ask)
    for _ in range(2):
        for after in range(30):
            steps = msgspec.json.decode(await feed.steps(after))["steps"]
            events = msgspec.json.decode(await feed.run(after))["events"]
            assert [line["seq"] for line in steps] == list(range(after + 1, 31))
            assert [event["seq"] for event in events] == list(range(after + 1, feed.mirror.own.events[-1]["seq"] + 1))
    assert len(feed._answers) == ANSWERS_MAX


def test_a_brief_answer_is_small_whatever_the_swarm_and_its_history() -> None:
    timeline = Timeline("name")
    for number in range(1000):
        timeline.committed({"step": number, "loss": 1.0, "time": float(number)})
        timeline.wait(f"reason {chr(97 + number % 26)}", number, float(number))
    whole = view(*[[peer(number, "loading" if number % 2 else "serving") for number in range(1000)] for _ in range(3)])
    answer = answer_to(Question(brief=1), brief(whole), timeline)
    assert [line["step"] for line in answer["steps"]] == list(range(1000 - BRIEF_STEPS, 1000))
    stages = answer["view"]["stages"]
    assert [stage["phases"] for stage in stages] == [{"serving": 500, "loading": 500}] * 3
    assert sum(len(stage["peers"]) for stage in stages) == BRIEF_PEERS
    assert (answer["view"]["hops"], whole["hops"] != []) == ([], True)
    again = answer_to(Question("name", 0, 990, brief=1), brief(whole), timeline)
    assert [line["seq"] for line in again["steps"]] == list(range(991, 1001))
    assert len(msgspec.json.encode(answer)) < 100_000
    assert len(answer["events"]) <= BRIEF_EVENTS


@pytest.mark.asyncio
async def test_a_display_asks_briefly_and_leaves_events_to_the_log_of_the_leader() -> None:
    timeline = Timeline("name")
    timeline.wait("a peer for stage 1", 0, 1e9)
    asked: list[Question] = []
    shown = ProcessView("trainer")
    display = RunDisplay(shown)

    async def ask(question: Question | None) -> bytes:
        assert question is not None
        asked.append(question)
        return msgspec.json.encode(answer_to(question, brief(view([peer(1)], [])), timeline))

    display.ask, display.name = ask, "another"
    task = asyncio.create_task(display.keep_up())
    await until(lambda: shown.run is not None)
    task.cancel()
    assert asked[0].brief == 1
    assert [event.text for event in shown.events] == ["the run waits for a peer for stage 1"]
    leader = ProcessView("trainer")
    display = RunDisplay(leader)
    display.ask, display.name = ask, "first"
    task = asyncio.create_task(display.keep_up())
    await until(lambda: leader.run is not None)
    task.cancel()
    assert leader.events == ()


def test_the_status_shows_what_strangers_write_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    show(msgspec.json.encode(view([peer(1)], phase="gathering", waiting_for=HOSTILE)), False)
    assert_clean(capsys.readouterr().out)
