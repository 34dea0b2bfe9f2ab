"""Requests are answered in a fair order: who asks without end, or does not read, waits for its own answers alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from swarmflow.core.protocol.types import ProcessId
from swarmflow.runtime.transport.answer_queue import (
    ANSWERING_MAX,
    ANSWERING_OF_ADDRESS_MAX,
    UNWRITTEN_OF_ADDRESS_MAX,
    UNWRITTEN_OF_PROCESS_MAX,
    WAITING_MAX,
    WAITING_OF_PROCESS_MAX,
    AnswerQueue,
)
from swarmflow.runtime.transport.door import Caller
from swarmflow.runtime.transport.frames import FrameLimits, pack_front
from swarmflow.runtime.transport.requests import Arguments, BusyError
from swarmflow.runtime.transport.wire import Request, encode_header
from tests.runtime.nodes import deaf, hostile_stream, started, until
from tests.runtime.test_session import opened

A, B, C = Caller("a", "x"), Caller("b", "x"), Caller("c", "y")


class Asked:
    """A queue, and whose requests it has begun to answer, in order."""

    def __init__(self) -> None:
        self.queue = AnswerQueue()
        self.begun: list[str] = []

    def ask(self, caller: Caller, times: int = 1) -> list[bool]:
        process = ProcessId(caller.name, 1)
        return [self.queue.add(process, caller, lambda: self.begun.append(caller.name)) for _ in range(times)]

    def answer(self, caller: Caller, written: bool = True) -> None:
        self.queue.made(caller)
        if written:
            self.queue.written(caller)


def test_one_asker_leaves_answers_for_others_and_waits_for_a_few_of_its_own() -> None:
    asked = Asked()
    taken = asked.ask(A, 100)
    assert taken == [True] * (UNWRITTEN_OF_PROCESS_MAX + WAITING_OF_PROCESS_MAX) + [False] * (44)
    assert asked.begun == ["a"] * UNWRITTEN_OF_PROCESS_MAX
    assert asked.ask(C) == [True]
    assert asked.begun[-1] == "c", "at once"


def test_of_those_who_wait_the_address_and_the_process_with_fewest_answers_under_way_are_next() -> None:
    asked = Asked()
    asked.ask(A, 40)
    asked.ask(B, 2)
    assert set(asked.begun) == {"a"}, "the address has as many as it may"
    for name in ("b", "b", "a"):
        asked.answer(A)
        assert asked.begun[-1] == name
    asked.ask(C, ANSWERING_MAX)
    assert asked.begun.count("c") == ANSWERING_MAX - ANSWERING_OF_ADDRESS_MAX
    asked.answer(A)
    assert asked.begun[-1] == "c", "its address has fewer"


def test_who_does_not_read_its_answers_is_given_no_more_of_them_and_the_others_go_on() -> None:
    asked = Asked()
    asked.ask(A, 50)
    for _ in range(UNWRITTEN_OF_PROCESS_MAX):
        asked.answer(A, written=False)
    assert len(asked.begun) == UNWRITTEN_OF_PROCESS_MAX
    for _ in range(100):
        asked.ask(B)
        asked.answer(B)
    assert asked.begun.count("b") == 100
    asked.queue.written(A)
    assert len(asked.begun) == UNWRITTEN_OF_PROCESS_MAX + 101


def test_all_of_an_address_together_have_so_many_answers_unwritten() -> None:
    asked = Asked()
    for number in range(10):
        caller = Caller(f"name-{number}", "x")
        asked.ask(caller, 20)
        for _ in range(20):
            if asked.queue._answering["x"]:
                asked.answer(caller, written=False)
    assert len(asked.begun) == UNWRITTEN_OF_ADDRESS_MAX
    assert asked.ask(C) == [True]
    assert asked.begun[-1] == "c"


def test_requests_that_wait_are_bounded_in_all_and_forgotten_with_their_process() -> None:
    asked = Asked()
    taken = [asked.ask(Caller(f"name-{number}", "x"), 30) for number in range(30)]
    assert sum(map(sum, taken)) == WAITING_MAX + ANSWERING_OF_ADDRESS_MAX
    for number in range(30):
        asked.queue.drop(ProcessId(f"name-{number}", 1))
    assert asked.queue._waiting == {}
    assert not asked.queue._waiting_of_process
    assert asked.ask(C) == [True]


@pytest.mark.extended
@pytest.mark.asyncio
async def test_a_process_that_asks_without_end_and_does_not_read_starves_nobody(tmp_path: Path) -> None:
    """Over real connections: thousands of requests for 4 MiB, whose asker leaves its answers in the network."""
    body = bytes(4 << 20)
    begun: list[ProcessId] = []

    async def answer(sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        begun.append(sender)
        return [body]

    async with started(tmp_path, 3) as (node, flooder, other), deaf(flooder, welcomes=False):
        here, honest = await opened(node), await opened(other)
        here.requests.serve("large", answer, lane="background")
        honest.links.set_addresses(here.me, node.addresses())

        here.links.set_addresses(flooder.name, flooder.addresses())
        _, writer = await hostile_stream(flooder, node)
        request = [encode_header(Request(number, "large")) for number in range(5000)]
        writer.write(b"".join(pack_front(n, header, [], FrameLimits()) for n, header in enumerate(request)))
        await until(lambda: len(begun) == UNWRITTEN_OF_PROCESS_MAX)
        for _ in range(5):
            assert await honest.requests.ask(here.me, "large") == [body]
        assert begun.count(ProcessId(flooder.name, 1)) == UNWRITTEN_OF_PROCESS_MAX
        writer.transport.abort()
        await honest.close(0.0)
        await here.close(0.0)


@pytest.mark.asyncio
async def test_who_asks_for_more_than_may_wait_is_told_to_ask_again(tmp_path: Path) -> None:
    released = asyncio.Event()

    async def answer(sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        await released.wait()
        return [b"answer"]

    async with started(tmp_path, 2) as (node, other):
        here, asker = await opened(node), await opened(other)
        here.requests.serve("slow", answer)
        asker.links.set_addresses(here.me, node.addresses())
        most = UNWRITTEN_OF_PROCESS_MAX + WAITING_OF_PROCESS_MAX
        asking = [asyncio.create_task(asker.requests.ask(here.me, "slow")) for _ in range(most + 5)]
        done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        assert all(isinstance(task.exception(), BusyError) for task in done)
        released.set()
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert sum(isinstance(result, BusyError) for result in results) == 5
        assert [bytes(result[0]) for result in results if isinstance(result, list)] == [b"answer"] * most
        await asker.close(0.0)
        await here.close(0.0)
