"""However a peer's process ends, what it has kept in memory for a later leader goes to its state folder."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from peers.ending import Signals, run_lives
from peers.kept import BetweenLives, KeptStage
from peers.left import LeftState
from swarmflow.core.protocol.actions import Exit, Rejoin
from swarmflow.errors import NetworkError, SwarmflowError
from tests.runtime.manifests import manifest
from tests.runtime.stage_peers import peers
from tests.runtime.test_kept_stage import HELD
from tests.runtime.test_left_state import RUN

pytestmark = pytest.mark.asyncio

WAITING = replace(HELD, upcoming="")
LEFT, GONE = Exit("left before it had joined"), Rejoin("the leader is gone", WAITING)
Life = Callable[[bool], Awaitable[Exit | Rejoin]]


@asynccontextmanager
async def keeping() -> AsyncIterator[BetweenLives]:
    """What a peer holds of a run that nobody leads any more."""
    async with peers(manifest()) as (peer,):
        assert peer.host.served is not None
        peer.host.served.version = WAITING.version
        yield BetweenLives(KeptStage(WAITING, peer.host.served, RUN, 4))


def ends(stop: Signals, between: BetweenLives, *outcomes: Exit | Rejoin | SwarmflowError, signals: int) -> Life:
    """Lives that end like this, one after the other, and signals in the last of them; a leader is lost in the first."""
    left, kept = list(outcomes), between.kept
    between.kept = None

    async def life(first: bool) -> Exit | Rejoin:
        outcome = left.pop(0)
        between.kept = kept
        for _ in range(0 if left else signals):
            stop.on_signal()
        if isinstance(outcome, SwarmflowError):
            raise outcome
        return outcome

    return life


@pytest.mark.parametrize(
    ("outcomes", "signals"),
    [
        ((GONE,), 1),  # its leader dies while it drains
        ((GONE, LEFT), 1),
        ((GONE, LEFT), 2),
        ((GONE, GONE, Exit("refused", ok=False)), 0),
        ((GONE, NetworkError("the network daemon of this process ended")), 0),
    ],
)
async def test_what_was_kept_for_a_leader_to_come_is_on_the_disk(
    outcomes: Sequence[Exit | Rejoin | SwarmflowError], signals: int, tmp_path: Path
) -> None:
    async with keeping() as between:
        stop, left = Signals(), LeftState(tmp_path)
        life = ends(stop, between, *outcomes, signals=signals)
        with nullcontext() if signals else pytest.raises(SwarmflowError):
            await run_lives(life, stop, between, left, first=True)
        assert LeftState(tmp_path).find(RUN) == WAITING


async def test_what_lies_there_already_is_not_written_again_nor_what_nobody_keeps(tmp_path: Path) -> None:
    async with keeping() as between:
        stop, left = Signals(), LeftState(tmp_path)
        assert between.kept is not None
        left.write(between.kept)
        written = next(tmp_path.rglob("*.safetensors")).stat()
        await run_lives(ends(stop, between, LEFT, signals=1), stop, between, left, first=False)
        assert next(tmp_path.rglob("*.safetensors")).stat() == written
        await run_lives(ends(stop, between, LEFT, signals=1), Signals(), between, LeftState(None), first=False)


class SlowDisk(LeftState):
    """It does not come to an end."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.begun, self.ended = threading.Event(), threading.Event()

    def write(self, kept: KeptStage) -> None:
        """Nothing comes."""
        self.begun.set()
        self.ended.wait(20)


async def test_two_signals_cost_nothing_and_a_third_does_not_wait_for_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "swarmflow"):
        async with keeping() as between:
            ended: list[int] = []
            stop, left = Signals(lambda: ended.append(stop.count)), SlowDisk(tmp_path)
            dead: list[int] = []

            async def life(first: bool) -> Exit:
                stop.handlers = (lambda: dead.append(stop.count),)
                stop.on_signal()
                return LEFT

            ending = asyncio.create_task(run_lives(life, stop, between, left, first=False))
            assert await asyncio.to_thread(left.begun.wait, 10)
            stop.on_signal()
            await asyncio.sleep(0)
            assert not ending.done()
            assert dead == [1], "what the second one did to a life that was over"
            stop.on_signal()
            await ending
            assert not ended
            stop.on_signal()
            assert ended == [4], "it is in the middle of something that does not end"
            left.ended.set()
    assert "(to skip that: press Ctrl-C twice more)" in caplog.text
    assert "is lost: not waited for" in caplog.text


async def test_a_disk_that_refuses_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with keeping() as between:
        stop = Signals()
        (tmp_path / "file").touch()
        left = LeftState(tmp_path / "file" / "left")
        await run_lives(ends(stop, between, LEFT, signals=1), stop, between, left, first=False)
    assert "stage 1 at version 3 is lost" in caplog.text
