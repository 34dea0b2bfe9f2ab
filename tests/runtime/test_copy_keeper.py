"""A peer's disk: copies come over the network, are what they should be, and serve others; a full disk harms nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from peers.copies import VERSIONS_MAX, CopyKeeper
from swarmflow.compute.checkpoint import Checkpoint, version_folder
from swarmflow.core.protocol.actions import DropCopies, KeepCopies
from swarmflow.core.protocol.events import Applied, CopiesChanged, Event, StageWritten
from swarmflow.core.protocol.types import Holding, Member, Snapshot
from swarmflow.errors import CheckpointError, NetworkError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.execution.state_transfer import Listing, copy_stage, list_state, serve_state
from swarmflow.runtime.operations.exporting import state_tensor_lengths
from swarmflow.runtime.transport.node import Node
from tests.disks import no_more_files, small_disk
from tests.owners import trainer_access
from tests.runtime.manifests import SUMS, manifest
from tests.runtime.nodes import DEADLINE_S, started
from tests.runtime.stage_peers import EPOCH, RecordedEvents, peers
from tests.runtime.test_kept_stage import APPLY, sealed

pytestmark = pytest.mark.asyncio

E = TypeVar("E", bound=Event)


@dataclass
class Process:
    """One process's session, and what its machine was told."""

    session: Session
    recorded: RecordedEvents

    @property
    def member(self) -> Member:
        return Member(self.session.me, -1)

    async def change(self) -> CopiesChanged:
        return await self.event(CopiesChanged)

    async def event(self, kind: type[E]) -> E:
        event = await asyncio.wait_for(self.recorded.events.get(), DEADLINE_S)
        assert isinstance(event, kind)
        return event


@asynccontextmanager
async def processes(folder: Path, count: int) -> AsyncIterator[list[Process]]:
    """Processes that know each other's addresses."""
    async with started(folder, count) as nodes:
        made = [_process(node) for node in nodes]
        for one in made:
            for other in made:
                one.session.links.set_addresses(other.session.me, other.session.node.addresses())
            await one.session.links.start()
        try:
            yield made
        finally:
            for one in made:
                await one.session.close(0.0)


def _process(node: Node) -> Process:
    session, recorded = Session(node, trainer_access(), Metrics()), RecordedEvents()
    session.open({}, lambda body: bytes)
    session.driver.run(recorded, [])
    return Process(session, recorded)


def written(of: Manifest, root: Path, version: int, seed: int = 0) -> Checkpoint:
    """A version as a trainer has it on disk."""
    checkpoint = Checkpoint.begin(root, version, of.fingerprint, of.stages)
    numbers = np.random.default_rng(seed + version)
    for stage in range(of.stages):
        elements = state_tensor_lengths(of, stage)
        writer = checkpoint.writer(stage, elements)
        for name, count in elements.items():
            writer.write(name, 0, numbers.random(count, dtype=np.float32).tobytes())
        checkpoint.add(stage, writer)
    return checkpoint


def serve(process: Process, *checkpoints: Checkpoint, reads: list[str] | None = None, most: int = 1 << 30) -> None:
    """As a trainer does. reads: the tensors that were asked for. most: so many are read before the disk breaks."""
    by_version = {checkpoint.version: checkpoint for checkpoint in checkpoints}
    asked: list[str] = [] if reads is None else reads

    def read(stage: int, version: int, file: str, tensor: str, start: int, stop: int) -> bytes:
        asked.append(tensor)
        if len(asked) > most:
            raise NetworkError("the disk broke")
        return by_version[version].state(stage).read(tensor, start, stop)

    serve_state(
        process.session.requests, lambda stage, version, file: Listing(by_version[version].state(stage).elements), read
    )


async def test_copies_are_kept_served_found_again_and_deleted(tmp_path: Path) -> None:
    of = manifest()
    trainer_disk = [written(of, tmp_path / "trainer", version) for version in (4, 8)]
    old, new = (Snapshot(checkpoint.version, checkpoint.roots) for checkpoint in trainer_disk)
    async with processes(tmp_path, 3) as (trainer, peer, reader):
        serve(trainer, *trainer_disk)
        keeper = CopyKeeper(tmp_path / "peer")
        assert await keeper.begin(peer.session, of) == ()
        keeper.keep(KeepCopies(old, (1,), ((trainer.member,),)))
        assert await peer.change() == CopiesChanged((Holding(old, (1,)),))
        keeper.keep(KeepCopies(new, (0, 1), ((trainer.member,),) * 2))
        both = (Holding(new, (0, 1)), Holding(old, (1,)))
        assert await peer.change() == CopiesChanged(both)
        assert await CopyKeeper(tmp_path / "peer").begin(peer.session, of) == both, "the next life finds them"

        serve_state(peer.session.requests, keeper.listing, keeper.read)
        fetched = Checkpoint.begin_copy(tmp_path / "fetched", 8, of.fingerprint, of.stages, new.roots)
        args = (reader.session.requests, fetched, 1, (peer.member,), state_tensor_lengths(of, 1))
        await copy_stage(*args, new.roots[1])
        assert fetched.stages_held == (1,)

        keeper.drop(DropCopies(8, 8, 8))
        assert await peer.change() == CopiesChanged((Holding(new, (0, 1)),))
        assert [path.name for path in (tmp_path / "peer").iterdir()] == ["version-00000008"]


async def test_copies_take_no_more_of_a_disk_than_a_few_versions_whatever_is_asked_for(tmp_path: Path) -> None:
    of = manifest()
    versions = [written(of, tmp_path / "trainer", version) for version in range(1, VERSIONS_MAX + 2)]
    async with processes(tmp_path, 2) as (trainer, peer):
        serve(trainer, *versions)
        keeper = CopyKeeper(tmp_path / "peer")
        await keeper.begin(peer.session, of)
        orders = [KeepCopies(Snapshot(v.version, v.roots), (0, 1), ((trainer.member,),) * 2) for v in versions]
        for order in orders[:-1]:
            keeper.keep(order)
            assert not (await peer.change()).failed
        keeper.keep(orders[-1])
        change = await peer.change()
        assert change.failed == "this disk has as much of earlier versions as 4 whole ones would take"
        assert [holding.snapshot.version for holding in change.copies] == [4, 3, 2, 1]
        keeper.drop(DropCopies(2, 5, 2))
        await peer.change()
        keeper.keep(orders[-1])
        assert not (await peer.change()).failed


async def test_copies_of_a_former_cut_stay_until_there_is_a_newer_version(tmp_path: Path) -> None:
    of = manifest()
    cut_anew = replace(of, cuts=1)
    former = [written(of, tmp_path / "peer", version) for version in (4, 9)]
    newer = written(cut_anew, tmp_path / "trainer", 8)
    async with processes(tmp_path, 2) as (trainer, peer):
        serve(trainer, newer)
        keeper = CopyKeeper(tmp_path / "peer")
        assert [each.snapshot.version for each in await keeper.begin(peer.session, of)] == [9, 4]
        assert await keeper.begin(peer.session, cut_anew) == (), "they have other stages"
        keeper.keep(KeepCopies(Snapshot(8, newer.roots), (0, 1), ((trainer.member,),) * 2))
        assert [each.snapshot.version for each in (await peer.change()).copies] == [8]
        keeper.drop(DropCopies(8, 8, 8))
        await peer.change()
        assert [checkpoint.complete for checkpoint in former] == [False, True], "the run had come further before"
        assert [each.snapshot.version for each in await keeper.begin(peer.session, of)] == [9]


async def test_nothing_is_asked_for_while_a_copy_is_held_up(tmp_path: Path) -> None:
    of = manifest()
    checkpoint = written(of, tmp_path / "trainer", 4)
    snapshot = Snapshot(4, checkpoint.roots)
    reads: list[str] = []
    read_before: list[int] = []  # each time that it looked

    def held() -> bool:
        read_before.append(len(reads))
        return len(read_before) <= 3

    async with processes(tmp_path, 2) as (trainer, peer):
        serve(trainer, checkpoint, reads=reads)
        keeper = CopyKeeper(tmp_path / "peer")
        await keeper.begin(peer.session, of)
        keeper.hold = held
        keeper.keep(KeepCopies(snapshot, (1,), ((trainer.member,),)))
        assert await peer.change() == CopiesChanged((Holding(snapshot, (1,)),))
    assert read_before[:3] == [0, 0, 0]
    assert reads, "then it was copied"


async def test_a_holder_whose_bytes_are_wrong_is_passed_over(tmp_path: Path) -> None:
    of = manifest()
    right, wrong = written(of, tmp_path / "right", 8), written(of, tmp_path / "wrong", 8, seed=1)
    async with processes(tmp_path, 3) as (liar, honest, peer):
        serve(liar, wrong)
        serve(honest, right)
        copy = Checkpoint.begin_copy(tmp_path / "copy", 8, of.fingerprint, of.stages, right.roots)
        donors = (liar.member, honest.member)
        await copy_stage(peer.session.requests, copy, 0, donors, state_tensor_lengths(of, 0), right.roots[0])
        assert copy.stages_held == (0,)
        keeper = CopyKeeper(tmp_path / "peer")
        await keeper.begin(peer.session, of)
        keeper.keep(KeepCopies(Snapshot(8, right.roots), (0,), ((liar.member,),)))
        change = await peer.change()
        assert change.copies == ()
        assert "is not what was sent" in change.failed


@pytest.mark.parametrize("most", [100, 1], ids=["both", "one of them breaks"])
async def test_each_holder_gives_a_part_of_a_copy_and_what_one_owes_comes_from_others(
    tmp_path: Path, most: int
) -> None:
    of = manifest()
    checkpoint = written(of, tmp_path / "disk", 8)
    async with processes(tmp_path, 3) as (first, second, reader):
        reads: list[list[str]] = [[], []]
        serve(first, checkpoint, reads=reads[0], most=most)
        serve(second, checkpoint, reads=reads[1])
        copy = Checkpoint.begin_copy(tmp_path / "copy", 8, of.fingerprint, of.stages, checkpoint.roots)
        elements = state_tensor_lengths(of, 0)
        donors = (first.member, second.member)
        await copy_stage(reader.session.requests, copy, 0, donors, elements, checkpoint.roots[0])
        assert copy.stages_held == (0,)
    got = [*reads[0][:most], *reads[1]]
    assert sorted(got) == sorted(elements), "each is read once"
    assert all(reads)


async def test_a_disk_that_refuses_is_one_warning_and_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of = manifest()
    with caplog.at_level(logging.WARNING, "swarmflow"):
        checkpoint = written(of, tmp_path / "trainer", 8)
        async with processes(tmp_path, 2) as (trainer, peer):
            serve(trainer, checkpoint)
            (tmp_path / "no-folder").write_text("")
            keeper = CopyKeeper(tmp_path / "no-folder")
            await keeper.begin(peer.session, of)
            keeper.keep(KeepCopies(Snapshot(8, checkpoint.roots), (0, 1), ((trainer.member,),) * 2))
            change = await peer.change()
            assert change.copies == ()
            assert "cannot be written" in change.failed
            assert not peer.session.ended.done()
    assert [record.message for record in caplog.records if "no copy of version 8 is kept here" in record.message]


async def test_a_corrupt_copy_is_left_out_and_set_aside(tmp_path: Path) -> None:
    of = manifest()
    checkpoint = written(of, tmp_path / "peer", 8)
    copy = Checkpoint.begin_copy(tmp_path / "copy", 8, of.fingerprint, of.stages, checkpoint.roots)
    async with processes(tmp_path, 2) as (trainer, peer):
        serve(trainer, checkpoint)
        for stage in range(of.stages):
            args = (peer.session.requests, copy, stage, (trainer.member,), state_tensor_lengths(of, stage))
            await copy_stage(*args, checkpoint.roots[stage])
        file = copy.path / "stage-0.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        held = await CopyKeeper(tmp_path / "copy").begin(peer.session, of)
        assert held == (Holding(Snapshot(8, checkpoint.roots), (1,)),)
        assert file.with_name("stage-0.safetensors.corrupt").read_bytes() == data
        assert not file.exists()


async def test_a_copy_that_becomes_corrupt_is_told_of_by_whoever_is_asked_for_it(tmp_path: Path) -> None:
    of = manifest()
    checkpoint = written(of, tmp_path / "peer", 8)
    async with processes(tmp_path, 2) as (peer, reader):
        keeper = CopyKeeper(tmp_path / "peer")
        whole = Holding(Snapshot(8, checkpoint.roots), (0, 1))
        assert await keeper.begin(peer.session, of) == (whole,)
        file = checkpoint.path / "stage-0.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        serve_state(peer.session.requests, keeper.listing, keeper.read)
        fetched = Checkpoint.begin_copy(tmp_path / "fetched", 8, of.fingerprint, of.stages, checkpoint.roots)
        args = (reader.session.requests, fetched, 0, (peer.member,), state_tensor_lengths(of, 0))
        with pytest.raises(NetworkError, match="is corrupt"):
            await copy_stage(*args, checkpoint.roots[0])
        assert await peer.change() == CopiesChanged((Holding(whole.snapshot, (1,)),))
        assert file.with_name("stage-0.safetensors.corrupt").exists()


async def test_a_copy_that_cannot_be_read_now_is_offered_when_it_can(tmp_path: Path) -> None:
    of = manifest()
    checkpoint = written(of, tmp_path / "peer", 8)
    whole = Holding(Snapshot(8, checkpoint.roots), (0, 1))
    async with processes(tmp_path, 2) as (peer, reader):
        keeper = CopyKeeper(tmp_path / "peer", again_s=0.05)
        with no_more_files():
            assert await keeper.begin(peer.session, of) == ()
            assert await peer.change() == CopiesChanged(())
        while (change := await peer.change()) != CopiesChanged((whole,)):
            assert change == CopiesChanged(())
        serve_state(peer.session.requests, keeper.listing, keeper.read)
        with no_more_files(), pytest.raises(CheckpointError, match="cannot be read now"):
            keeper.listing(0, 8, "")
        assert peer.recorded.events.empty(), "the leader is told of none that is lost"
        await list_state(reader.session.requests, peer.session.me, 0, 8, state_tensor_lengths(of, 0))
    assert not list(tmp_path.rglob("*.corrupt"))


async def test_a_version_that_is_made_anew_is_not_served_from_the_file_of_the_former(tmp_path: Path) -> None:
    of = manifest()
    former = written(of, tmp_path / "peer", 8)
    anew = written(of, tmp_path / "trainer", 8, seed=1)
    async with processes(tmp_path, 2) as (trainer, peer):
        serve(trainer, anew)
        keeper = CopyKeeper(tmp_path / "peer")
        await keeper.begin(peer.session, of)
        name, count = next(iter(state_tensor_lengths(of, 1).items()))
        before = keeper.read(1, 8, "", name, 0, count)
        assert before == former.state(1).read(name, 0, count)
        keeper.keep(KeepCopies(Snapshot(8, anew.roots), (1,), ((trainer.member,),)))
        assert (await peer.change()).copies == (Holding(Snapshot(8, anew.roots), (1,)),)
        assert keeper.read(1, 8, "", name, 0, count) == anew.state(1).read(name, 0, count) != before


async def test_a_stage_that_its_own_peer_writes_is_that_of_the_version_though_an_update_waits(tmp_path: Path) -> None:
    of = manifest(**SUMS["blockwise16"])
    async with peers(of) as (computing,), processes(tmp_path, 1) as (peer,):
        await sealed(computing)
        served = computing.host.served
        assert served is not None
        state, elements = served.state, state_tensor_lengths(of, 1)
        before = {name: state.read(name, 0, count) for name, count in elements.items()}
        keeper = CopyKeeper(tmp_path / "peer")
        await keeper.begin(peer.session, of)
        reader = served.begin_reading(EPOCH.step)
        assert reader is not None
        computing.driver.perform([APPLY])
        keeper.write(1, EPOCH.step, state, reader)
        written_ = await peer.event(StageWritten)
        assert isinstance(await computing.next(), Applied)
        checkpoint = Checkpoint.open(version_folder(tmp_path / "peer", EPOCH.step))
        with checkpoint.state(1) as file:
            assert file.root == written_.root
            assert {name: file.read(name, 0, count) for name, count in elements.items()} == before
        assert any(state.read(name, 0, count) != before[name] for name, count in elements.items())


async def test_what_a_peer_has_written_is_a_copy_like_others_once_it_is_named(tmp_path: Path) -> None:
    of = manifest()
    async with peers(of) as (computing,), processes(tmp_path, 2) as (peer, reader):
        assert computing.host.served is not None
        keeper = CopyKeeper(tmp_path / "peer")
        await keeper.begin(peer.session, of)
        keeper.write(1, 8, computing.host.served.state, Future())
        roots = ("of the other stage", (await peer.event(StageWritten)).root)
        assert await CopyKeeper(tmp_path / "peer").begin(peer.session, of) == (), "nobody knows the version yet"

        serve_state(peer.session.requests, keeper.listing, keeper.read)
        fetched = Checkpoint.begin_copy(tmp_path / "fetched", 8, of.fingerprint, of.stages, roots)
        args = (reader.session.requests, fetched, 1, (peer.member,), state_tensor_lengths(of, 1))
        await copy_stage(*args, roots[1])
        with pytest.raises(NetworkError, match="is not here"):
            await copy_stage(*args, "of another history")

        snapshot = Snapshot(8, roots)
        keeper.keep(KeepCopies(snapshot, (1,), ((peer.member,),), whole=False))
        assert await peer.change() == CopiesChanged((Holding(snapshot, (1,), whole=False),))
        keeper.drop(DropCopies(8, 8, 8))
        assert await peer.change() == CopiesChanged((Holding(snapshot, (1,)),))


async def test_what_a_peer_wrote_before_it_died_is_found_when_it_is_asked_for(tmp_path: Path) -> None:
    """Nobody is named who has it: it died before it heard of the version, and nobody had copied the file yet."""
    of = manifest()
    async with peers(of) as (computing,), processes(tmp_path, 1) as (peer,):
        assert computing.host.served is not None
        keeper = CopyKeeper(tmp_path / "peer")
        await keeper.begin(peer.session, of)
        keeper.write(1, 8, computing.host.served.state, Future())
        snapshot = Snapshot(8, ("of the other stage", (await peer.event(StageWritten)).root))
        again = CopyKeeper(tmp_path / "peer")
        await again.begin(peer.session, of)
        again.keep(KeepCopies(snapshot, (1,), ((),), whole=False))
        assert await peer.change() == CopiesChanged((Holding(snapshot, (1,), whole=False),))
        again.keep(KeepCopies(Snapshot(4, snapshot.roots), (1,), ((),), whole=False))
        assert (await peer.change()).failed == "it was not written here"
        assert not version_folder(tmp_path / "peer", 4).exists()


async def test_a_stage_that_the_disk_refuses_is_told_of_and_the_update_goes_on(tmp_path: Path) -> None:
    of = manifest()
    async with peers(of) as (computing,), processes(tmp_path, 1) as (peer,):
        assert computing.host.served is not None
        (tmp_path / "no-folder").write_text("")
        keeper, done = CopyKeeper(tmp_path / "no-folder"), Future[None]()
        await keeper.begin(peer.session, of)
        keeper.write(1, 8, computing.host.served.state, done)
        assert "cannot be written" in (await peer.event(StageWritten)).failed
        assert done.done()


async def test_a_full_disk_takes_the_note_that_a_version_was_whole_once_the_earlier_ones_are_deleted(
    tmp_path: Path,
) -> None:
    of = manifest()
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        folder = disk.path / "peer"
        written(of, folder, 4)
        written(of, folder, 8).note(whole=False)
        disk.fill()
        async with processes(tmp_path, 1) as (peer,):
            keeper = CopyKeeper(folder)
            assert [holding.whole for holding in await keeper.begin(peer.session, of)] == [False, True]
            keeper.drop(DropCopies(8, 8, 8))
            copies = (await peer.change()).copies
            assert [(holding.snapshot.version, holding.whole) for holding in copies] == [(8, True)]
            assert not peer.session.ended.done()


@pytest.mark.parametrize("order", ["drop", "seek"])
async def test_copies_that_cannot_be_listed_now_are_a_warning_and_no_failure(
    order: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of = manifest()
    checkpoint = written(of, tmp_path / "peer", 8)
    async with processes(tmp_path, 1) as (peer,):
        keeper = CopyKeeper(tmp_path / "peer")
        await keeper.begin(peer.session, of)
        with no_more_files():
            if order == "drop":
                keeper.drop(DropCopies(8, 8, 8))
            else:
                keeper.keep(KeepCopies(Snapshot(8, checkpoint.roots), (1,), ((),), whole=False))
            assert (await peer.change()).copies == ()
        assert not peer.session.ended.done()
    assert any("cannot be read now" in record.message for record in caplog.records)
