"""A stage's state in the folder of a peer that left at once: the next life goes on from it, to the bit."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
import torch

from peers.copies import CopyKeeper
from peers.fitting import MemoryBudget
from peers.kept import BetweenLives, KeptStage
from peers.left import LeftState
from peers.loading import StageLoader
from swarmflow.core.protocol.actions import LoadState, Rejoin, Reset, Resume, SumPiece
from swarmflow.core.protocol.events import Applied, Event, Lost, PieceReduced, Progressed, StateLoaded, StateNotLoaded
from swarmflow.core.protocol.messages import Held
from swarmflow.core.protocol.types import Member, ProcessId
from swarmflow.errors import CheckpointError, NoRoomError
from swarmflow.runtime.execution.load_progress import LoadMeter
from swarmflow.runtime.execution.stage_host import StageHost
from swarmflow.runtime.execution.worker import Worker
from tests.disks import flip_bit, no_more_files, small_disk
from tests.runtime.manifests import SUMS, manifest
from tests.runtime.nodes import DEADLINE_S, started, until
from tests.runtime.stage_peers import EPOCH, Peer, RecordedEvents, peers
from tests.runtime.test_kept_stage import APPLY, FIRST, HELD, sealed
from tests.runtime.test_session import opened

pytestmark = pytest.mark.asyncio

RUN = "fingerprint"


async def leave(peer: Peer, folder: Path, held: Held = HELD) -> None:
    """What a life leaves that has reduced the gradient of its step."""
    await sealed(peer)
    assert peer.host.served is not None
    kept = KeptStage(held, peer.host.served, RUN, 4)
    await peer.compute.call(FIRST, kept.settle)
    LeftState(folder).write(kept)


@pytest.mark.parametrize(
    ("sums", "exponent", "state_bits"),
    [("exact", 36, 32), ("exact", 20, 32), ("fp32", 36, 32), ("blockwise16", 36, 32), ("blockwise16", 36, 8)],
)
async def test_the_next_life_makes_the_update_that_this_one_would_have_made(
    sums: str, exponent: int, state_bits: int, tmp_path: Path
) -> None:
    """Also in a step whose gradients had been too large for the exponent with which a stage is built."""
    async with peers(manifest(**SUMS[sums], state_bits=state_bits), 3) as (one, other, later):
        for peer in (one, other):
            peer.driver.perform([Reset(exponent)])
        await sealed(one)
        assert await one.ask(APPLY) == Applied(APPLY.epoch)
        await leave(other, tmp_path / "left")
        found = LeftState(tmp_path / "left")
        assert found.find(RUN) == HELD
        assert later.host.served is not None
        kept = found.fill(later.host.served)
        assert (kept.held, kept.run, kept.capacity) == (HELD, RUN, 4)
        kept.served.update(APPLY.epoch.step, APPLY.scale, APPLY.learning_rate)
        assert one.host.served is not None
        assert kept.served.state.digest() == one.host.served.state.digest()
        found.remove()
        assert found.find(RUN) is None
        assert not list((tmp_path / "left").iterdir())


async def test_a_later_one_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    async with peers(manifest(), 2) as (one, other):
        await leave(one, tmp_path / "left", replace(HELD, upcoming=""))
        await leave(other, tmp_path / "left")
        found = LeftState(tmp_path / "left")
        assert found.find(RUN) == HELD
        assert other.host.served is not None
        assert found.fill(other.host.served).held.upcoming == HELD.upcoming


def names(folder: Path) -> list[str]:
    """What lies in a folder of what was left."""
    return sorted(path.name for path in folder.iterdir())


def killed_before_the_last_line(folder: Path) -> None:
    """Or in the middle of deleting it."""
    (folder / "held").unlink()


def killed_in_the_middle(folder: Path) -> None:
    (folder / "held").unlink()
    state = next(folder.rglob("*.safetensors"))
    state.rename(state.with_name(f".{state.name}.0123abcd.part"))
    (state.parent / "manifest.json").unlink()


def killed_between_two(folder: Path) -> None:
    shutil.copytree(folder / "version-00000003", folder / "version-00000002")


def corrupted(folder: Path) -> None:
    flip_bit(folder / "held", Random(0))


@pytest.mark.parametrize("happens", [killed_before_the_last_line, killed_in_the_middle, killed_between_two, corrupted])
@pytest.mark.parametrize("what", ["find", "write", "remove"])
async def test_nothing_stays_that_nobody_would_find(happens: Callable[[Path], None], what: str, tmp_path: Path) -> None:
    """It would take many GB for ever, and leave no room for the next one."""
    async with peers(manifest()) as (peer,):
        await leave(peer, tmp_path)
        happens(tmp_path)
        left = LeftState(tmp_path)
        if what == "find":
            assert left.find(RUN) == (HELD if happens is killed_between_two else None)
        elif what == "write":
            assert peer.host.served is not None
            left.write(KeptStage(replace(HELD, version=4), peer.host.served, RUN, 4))
        else:
            left.remove()
        kept = ["held", f"version-0000000{left.held.version}"] if left.held is not None else []
        assert [name for name in names(tmp_path) if "corrupt" not in name] == kept
        assert LeftState(tmp_path).find(RUN) == left.held


async def test_what_cannot_be_written_costs_nothing_that_was_there(tmp_path: Path) -> None:
    async with peers(manifest()) as (peer,):
        await leave(peer, tmp_path)
        assert peer.host.served is not None
        left = LeftState(tmp_path)
        with pytest.raises(CheckpointError):
            left.write(KeptStage(replace(HELD, stage=9, version=4), peer.host.served, RUN, 4))
        assert names(tmp_path) == ["held", "version-00000003"]
        assert left.held is None
        assert left.find(RUN) == HELD


async def test_a_full_disk_keeps_no_half_of_it_and_the_earlier_one_makes_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        async with peers(manifest()) as (peer,):
            folder = disk.path / "left"
            await leave(peer, folder)
            size = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
            assert peer.host.served is not None
            later = KeptStage(replace(HELD, version=4), peer.host.served, RUN, 4)
            disk.fill()
            LeftState(folder).write(later)
            assert LeftState(folder).find(RUN) == later.held
            LeftState(folder).remove()
            disk.fill()
            filler = disk.path / "filler"
            pages = -(-size // 4096)
            os.truncate(filler, filler.stat().st_size - 4096 * pages)
            with pytest.raises(NoRoomError):
                LeftState(folder).write(later)
            assert not names(folder)


async def test_threads_that_write_and_remove_at_once_leave_one_or_none(tmp_path: Path) -> None:
    async with peers(manifest()) as (peer,):
        await leave(peer, tmp_path)
        assert peer.host.served is not None
        left, of = LeftState(tmp_path), peer.host.served
        writes = [partial(left.write, KeptStage(replace(HELD, version=n), of, RUN, 4)) for n in range(3, 9)]
        await asyncio.gather(*(asyncio.to_thread(each) for write in writes for each in (write, left.remove)))
        held = LeftState(tmp_path).find(RUN)
        assert held == left.held
        assert len(names(tmp_path)) == (0 if held is None else 2)


@asynccontextmanager
async def loading(tmp_path: Path, sums: str = "exact") -> AsyncIterator[tuple[Peer, StageLoader, LeftState]]:
    """A peer that serves nothing yet, and finds what an earlier life has left. Its machine is told of what it loads."""
    of = manifest(**SUMS[sums])
    async with started(tmp_path, 1) as [node], peers(of) as (earlier,):
        await leave(earlier, tmp_path / "left")
        session = await opened(node)
        failures: asyncio.Queue[BaseException] = asyncio.Queue()
        workers = [Worker(name, failures.put_nowait) for name in ("compute", "codec")]
        host, recorded, left = (
            StageHost(of, session.driver, workers[0], workers[1]),
            RecordedEvents(),
            LeftState(tmp_path / "left"),
        )
        session.driver.add_effects(host.effects())
        session.driver.run(recorded, [])
        assert left.find(RUN) == HELD
        measures = MemoryBudget(torch.device("cpu"), capacity=4), LoadMeter()
        copies = CopyKeeper(tmp_path / "copies", keeps=False)
        loader = StageLoader(of, session, host, workers[0], *measures, copies, left, BetweenLives(), wish=-1)
        yield Peer(session.me, of, host, session.driver, recorded, failures, workers[0]), loader, left
        await session.close()
        for worker in workers:
            worker.stop()


async def answer(peer: Peer, kind: type[Event]) -> Event:
    while not isinstance(event := await peer.next(), kind):
        assert isinstance(event, Progressed | Lost)
    return event


async def test_what_was_left_stays_until_a_step_is_committed_after_it(tmp_path: Path) -> None:
    """A process that is killed in its first step, for want of memory, would lose what was saved."""
    async with loading(tmp_path) as (peer, loader, left):
        loader.resume(Resume(1, HELD.version))
        loaded = await answer(peer, StateLoaded)
        assert isinstance(loaded, StateLoaded)
        assert loaded.version == HELD.version
        peer.driver.perform([Reset()])
        await sealed(peer)
        assert LeftState(tmp_path / "left").find(RUN) == HELD
        assert isinstance(await peer.ask(APPLY), Applied)
        await until(lambda: left.held is None)


async def test_a_stage_beside_which_there_is_no_room_any_more_is_given_up_for_another_one(tmp_path: Path) -> None:
    async with loading(tmp_path) as (peer, loader, _):
        budget = loader._budget
        budget.limit_bytes, budget.capacity = 1 << 30, 1 << 30  # not for so many microbatches
        loader.resume(Resume(1, HELD.version))
        async with asyncio.timeout(DEADLINE_S):
            outcome = await loader._session.ended
        assert isinstance(outcome, Rejoin)
        assert outcome.reason.startswith("--memory-limit")
        assert outcome.held is None
        assert budget.unfit(peer.of) == (1,), "its next life joins for the other one"
        assert LeftState(tmp_path / "left").find(RUN) == HELD, "one with more memory may go on from it"


async def test_a_state_that_goes_on_without_the_update_that_was_left_takes_part_in_the_next_all_reduce(
    tmp_path: Path,
) -> None:
    async with loading(tmp_path, "blockwise16") as (peer, loader, _):
        loader.resume(Resume(1, HELD.version))
        await answer(peer, StateLoaded)
        peer.driver.perform([Reset()])
        await peer.loss(0)
        assert peer.host.served is not None
        elements = peer.host.served.stage.groups["own"].sums.elements
        assert isinstance(await peer.ask(SumPiece(EPOCH, 1, "stage-1", 0, 0, elements, (None,))), PieceReduced)


async def test_what_was_left_stays_until_another_version_is_loaded(tmp_path: Path) -> None:
    async with loading(tmp_path) as (peer, loader, left):
        loader.load(LoadState(1, 2, (Member(ProcessId("nobody", 1), 1),)))
        await answer(peer, StateNotLoaded)
        assert LeftState(tmp_path / "left").find(RUN) == left.held == HELD
        loader.load(LoadState(1, 0, ()))
        await answer(peer, StateLoaded)
        await until(lambda: left.held is None)


async def test_what_no_peer_could_give_is_loaded_from_whoever_keeps_the_version(tmp_path: Path) -> None:
    """Also where the leader says that what is here may follow: nothing is, since its donor was gone."""
    async with loading(tmp_path) as (peer, loader, _):
        loader.load(LoadState(1, 0, (Member(ProcessId("nobody", 1), 1),)))
        await answer(peer, StateNotLoaded)
        loader.load(LoadState(1, 0, (), follows=True))
        loaded = await answer(peer, StateLoaded)
        assert isinstance(loaded, StateLoaded)
        assert loaded.version == 0


async def test_a_grant_that_goes_on_after_a_failed_one_is_not_answered_by_that_failure(tmp_path: Path) -> None:
    async with loading(tmp_path) as (peer, loader, _):
        loader.load(LoadState(1, 2, (Member(ProcessId("nobody", 1), 1),)))
        await until(lambda: loader._loaded is not None and not loader._loaded.pending)
        loader.load(LoadState(1, 3, (Member(ProcessId("nobody else", 1), 1),), follows=True))
        failed = await answer(peer, StateNotLoaded)
        assert isinstance(failed, StateNotLoaded)
        assert failed.version == 3


async def test_it_is_of_its_run_alone(tmp_path: Path) -> None:
    async with peers(manifest()) as (peer,):
        await leave(peer, tmp_path / "left")
        assert LeftState(tmp_path / "left").find("another run") is None
        assert LeftState(tmp_path / "left").find(RUN) == HELD, "it may come back"


@pytest.mark.parametrize("name", ["held", "version-00000003/stage-1.safetensors", "version-00000003/manifest.json"])
async def test_what_is_corrupt_is_told_of_kept_and_not_believed(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with peers(manifest()) as (peer,):
        await leave(peer, tmp_path / "left")
        flip_bit(tmp_path / "left" / name, Random(0))
        found = LeftState(tmp_path / "left")
        with caplog.at_level(logging.WARNING, "swarmflow"):
            assert found.find(RUN) is None
        assert "corrupt" in caplog.text
        assert list(tmp_path.rglob("*.corrupt"))
        assert peer.host.served is not None
        with pytest.raises(CheckpointError):
            found.fill(peer.host.served)


async def test_what_the_disk_does_not_give_now_stays_for_the_next_start(tmp_path: Path) -> None:
    async with peers(manifest(), 1) as (one,):
        await leave(one, tmp_path / "left")
    with no_more_files():
        assert LeftState(tmp_path / "left").find(RUN) is None
    assert LeftState(tmp_path / "left").find(RUN) == HELD
