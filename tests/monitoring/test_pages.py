"""The pages of the whole swarm, asked for over HTTP while the event loop of a trainer runs."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request

import msgspec
import pytest

from swarmflow.errors import NetworkError
from swarmflow.monitoring.pages import swarm_pages
from swarmflow.runtime.execution.metrics import Metrics
from tests.monitoring.views import peer, view

pytestmark = pytest.mark.asyncio


def read(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


async def test_many_who_ask_at_once_cost_one_view() -> None:
    asked = 0

    async def ask() -> bytes:
        nonlocal asked
        asked += 1
        return msgspec.json.encode(view([peer("a", port=9400)]))

    metrics = Metrics()
    port = metrics.serve(0)
    with metrics.pages(swarm_pages(ask)):
        paths = ["/metrics/swarm", "/targets"] * 4
        answers = await asyncio.gather(*(asyncio.to_thread(read, port, path) for path in paths))
    metrics.close()
    assert {status for status, _ in answers} == {200}
    assert b"swarmflow_swarm_version 12.0" in answers[0][1]
    assert json.loads(answers[1][1])[0]["targets"] == ["10.0.0.7:9400"]
    assert asked == 1


@pytest.mark.parametrize("answer", [b"", b"[]", b"{", b"\xff"])
async def test_an_answer_that_is_no_view_is_one_line(answer: bytes) -> None:
    async def ask() -> bytes:
        return answer

    metrics = Metrics()
    port = metrics.serve(0)
    with metrics.pages(swarm_pages(ask)):
        status, body = await asyncio.to_thread(read, port, "/metrics/swarm")
    metrics.close()
    assert status == 503
    assert body.startswith(b"the answer of the leader is no view")
    assert body.count(b"\n") == 1


async def test_without_a_leader_the_reason_is_told() -> None:
    async def ask() -> bytes:
        raise NetworkError("its trainers are electing a leader")

    metrics = Metrics()
    port = metrics.serve(0)
    with metrics.pages(swarm_pages(ask)):
        assert await asyncio.to_thread(read, port, "/targets") == (503, b"its trainers are electing a leader\n")
    metrics.close()
