"""How runs of this machine ended, and who answers for those that are alive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from swarmflow.errors import NetworkError
from swarmflow.runtime.operations import answering as operations_answering
from swarmflow.runtime.operations import asking
from swarmflow.runtime.operations.answering import ANSWERING_MAX, Counter, answering
from swarmflow.runtime.operations.asking import ask_status
from swarmflow.runtime.operations.left_runs import RECORDS_MAX, LeftRun, forget_left, last_left, left_run, write_left
from swarmflow.runtime.transport.invite import publish_local
from swarmflow.runtime.transport.node import StreamHandler
from swarmflow.view.watching import Question
from tests.owners import invite_of, trainer_access
from tests.runtime.nodes import DEADLINE_S
from tests.unread import dropped

NAME = "12D3KooWBxdvPYPDgtpQ3fByWxjCUcsMzVr83AJo4rsta18wUC2m"
INVITE = invite_of(f"/ip4/127.0.0.1/tcp/9/p2p/{NAME}", name="mine")
STATUS = b'{"step":7}'


def ended(run_id: str, version: int = 5, finished: bool = False) -> LeftRun:
    return LeftRun(run_id, f"name-{run_id}", version, 9, "/data/out", finished)


def test_an_end_is_remembered_until_the_run_goes_on(tmp_path: Path) -> None:
    assert left_run("a", tmp_path) is None
    write_left(ended("a"), tmp_path)
    write_left(ended("a", 9, finished=True), tmp_path)
    found = left_run("a", tmp_path)
    assert found is not None
    assert str(found) == "run name-a has ended at step 9 of 9: the result is in /data/out/final"
    assert str(ended("a", 9)) == "run name-a has ended at step 9 of 9: its leader has the result"
    assert str(ended("a")) == "the trainer of this machine left run name-a at step 5 of 9, see /data/out"
    forget_left("a", tmp_path)
    assert left_run("a", tmp_path) is last_left(tmp_path) is None


def test_only_the_last_ends_are_kept_and_nothing_else_is_removed(tmp_path: Path) -> None:
    write_left(ended("first"), tmp_path)
    other = tmp_path / "ended" / "notes.json"
    other.write_text("{}", encoding="utf-8")
    for number in range(RECORDS_MAX):
        write_left(ended(f"run-{number}"), tmp_path)
    assert left_run("first", tmp_path) is None
    assert left_run("run-0", tmp_path) is not None
    last = last_left(tmp_path)
    assert last is not None
    assert last.run_id == f"run-{RECORDS_MAX - 1}"
    assert other.read_text(encoding="utf-8") == "{}"


T = TypeVar("T")


async def apart(protocol: str, handler: StreamHandler) -> None:
    """No streams come from the network: what a test asks comes from this machine."""


async def answered(
    tmp_path: Path,
    patch: pytest.MonkeyPatch,
    report: Callable[[Question | None], Awaitable[bytes]],
    ask: Callable[[Counter], Awaitable[T]],
) -> T:
    """What `ask` gives while a trainer of this machine answers with `report`."""
    patch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    async with answering(apart, trainer_access(), report) as counter:
        publication = publish_local(INVITE, port=counter.port, token=counter.token)
        try:
            return await ask(counter)
        finally:
            publication.withdraw()


async def fine(question: Question | None) -> bytes:
    return STATUS


async def refuses(question: Question | None) -> bytes:
    raise NetworkError("its trainers are electing a leader")


async def never(question: Question | None) -> bytes:
    await asyncio.get_running_loop().create_future()
    return b""


async def mistaken(question: Question | None) -> bytes:
    raise ZeroDivisionError


@pytest.mark.asyncio
async def test_an_answer_that_is_not_read_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def long(question: Question | None) -> bytes:
        return b'"' + b"x" * (1 << 24) + b'"'

    async def ask(counter: Counter) -> None:
        await dropped(counter.port, f"{counter.token}\n".encode())

    monkeypatch.setattr(operations_answering, "QUESTION_S", 0.3)
    await answered(tmp_path, monkeypatch, long, ask)


@pytest.mark.asyncio
async def test_a_trainer_of_this_machine_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await answered(tmp_path, monkeypatch, fine, lambda counter: ask_status(INVITE)) == STATUS


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("report", "pattern"),
    [
        (refuses, "its trainers are electing a leader"),
        (mistaken, r"the status could not be told \(ZeroDivisionError\)"),
        (never, "nobody has answered within 0.5 s"),
    ],
)
async def test_why_there_is_no_status_is_told_in_time(
    report: Callable[[Question | None], Awaitable[bytes]], pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ASK_S", 0.5 if report is never else asking.ASK_S)
    with pytest.raises(NetworkError, match=f"^run mine does not answer: .*{pattern}.*; is its trainer running"):
        await answered(tmp_path, monkeypatch, report, lambda counter: ask_status(INVITE))


@pytest.mark.asyncio
@pytest.mark.parametrize("question", [b"guess\n", b"\n", b"x" * 5000, b"\xff\xfe\n", b"GET / HTTP/1.1\r\n\r\n"])
async def test_who_does_not_know_the_word_learns_nothing(
    question: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(counter: Counter) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", counter.port)
        writer.write(question)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.transport.abort()

    answer = await answered(tmp_path, monkeypatch, fine, ask)
    assert STATUS not in answer
    assert answer == b"" or b"may ask" in answer


@pytest.mark.asyncio
async def test_many_questions_at_a_time_are_told_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(counter: Counter) -> bytes:
        streams = [await asyncio.open_connection("127.0.0.1", counter.port) for _ in range(2 * ANSWERING_MAX)]
        for _, writer in streams:
            writer.write(f"{counter.token}\n".encode())
        try:
            async with asyncio.timeout(DEADLINE_S):
                for reading in asyncio.as_completed([reader.read() for reader, _ in streams]):
                    if answer := await reading:
                        return answer
            return b""
        finally:
            for _, writer in streams:
                writer.transport.abort()

    assert b"busy; ask again" in await answered(tmp_path, monkeypatch, never, ask)
