"""The page of a trainer outlasts the incarnations of the trainer."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from swarmflow.core.protocol.timeline import EventKind
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.operations.answering import Report
from swarmflow.view.timeline import Timeline
from swarmflow.view.watching import Question, answer_to
from trainers.options import TrainerOptions
from trainers.page import RunPage


def options(port: int) -> TrainerOptions:
    """As `swarmflow trainer RUN.toml --page PORT` has them."""
    none = ("state_dir", "invite_file", "json_file", "invite", "metrics_port", "metrics_token", "listen")
    files = dict.fromkeys(none)
    given = {**files, "run_toml": Path("RUN.toml"), "metrics_host": "127.0.0.1", "announce": ()}
    return TrainerOptions.parse({**given, "page_port": port, "page_host": "127.0.0.1"})


def life(number: int, timeline: Timeline) -> Report:
    """What an incarnation answers. The timeline is the process's, and lasts."""
    timeline.add(EventKind.LEADER, f"life {number}", 0, float(number))

    async def answer(question: Question | None) -> bytes:
        assert question is not None
        return json.dumps(answer_to(question, {"life": number}, timeline)).encode()

    return answer


async def until(url: str, shown: dict[str, int]) -> list[str]:
    """Wait until the page shows a view; return the texts of its events."""

    def get() -> dict[str, Any]:
        with urllib.request.urlopen(f"{url}api/run", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    async with asyncio.timeout(20):
        while (run := await asyncio.to_thread(get))["view"] != shown or run["error"]:
            pass
    return [event["text"] for event in run["events"]]


@pytest.mark.asyncio
async def test_the_page_goes_on_with_the_next_incarnation(caplog: pytest.LogCaptureFixture) -> None:
    timeline = Timeline("one process")
    async with AsyncExitStack() as stack:
        with caplog.at_level(logging.INFO, "swarmflow"):
            page = await RunPage.serve(stack, options(port=0), Metrics())
        [url] = re.findall(r"page: (http://127\.0\.0\.1:\d+/)", caplog.text)
        with pytest.raises(NetworkError, match="about to begin"):
            await page.ask(Question())
        page.ask = life(1, timeline)
        assert await until(url, {"life": 1}) == ["life 1"]
        page.ask = life(2, timeline)
        assert await until(url, {"life": 2}) == ["life 1", "life 2"]


@pytest.mark.asyncio
async def test_a_port_that_is_taken_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        with caplog.at_level(logging.INFO, "swarmflow"):
            await RunPage.serve(stack, options(port=0), Metrics())
        [port] = re.findall(r"page: http://127\.0\.0\.1:(\d+)/", caplog.text)
        with pytest.raises(
            NetworkError, match=rf"cannot serve the page on 127\.0\.0\.1:{port}: .* choose another port"
        ):
            await RunPage.serve(stack, options(port=int(port)), Metrics())
