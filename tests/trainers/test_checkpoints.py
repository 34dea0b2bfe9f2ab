"""A trainer's copies of committed versions: whoever asks for one, and how often, it is copied once and whole."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from swarmflow.compute.checkpoint import checkpoints
from swarmflow.config import RunSection
from swarmflow.core.protocol.actions import Connect, WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten, DiskChanged, Event, Progressed
from swarmflow.core.protocol.types import Holding, Member, Roster, Snapshot
from swarmflow.errors import NetworkError
from swarmflow.files import read_sealed, readable_size
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.execution.state_transfer import Listing, list_state, serve_state
from swarmflow.runtime.operations.exporting import state_tensor_lengths
from swarmflow.runtime.transport.node import Node
from tests.disks import flip_bit, small_disk
from tests.runtime.manifests import manifest
from tests.runtime.nodes import DEADLINE_S, started
from tests.runtime.stage_peers import RecordedEvents
from tests.runtime.test_session import opened
from tests.trainers.test_data import opened as corpus
from trainers.checkpoints import COPYING_S, SPARED_MAX, Checkpoints
from trainers.state import StateFolder

pytestmark = pytest.mark.asyncio

VERSION = 7


@dataclass
class Donor:
    """Holds zeros for every stage's state, and counts who asks. It gives nothing before `go`."""

    of: Manifest
    session: Session
    listed: list[int] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    def serve(self, *, at_once: bool = False) -> Member:
        loop = asyncio.get_running_loop()
        if at_once:
            self.go.set()

        def listing(stage: int, version: int, file: str) -> Listing:
            self.listed.append(stage)
            loop.call_soon_threadsafe(self.asked.set)
            asyncio.run_coroutine_threadsafe(self.go.wait(), loop).result()
            return Listing(state_tensor_lengths(self.of, stage))

        serve_state(self.session.requests, listing, lambda *part: bytes(4 * (part[-1] - part[-2])))
        return member_of(self.session)


async def session(node: Node) -> tuple[Session, RecordedEvents]:
    made, recorded = await opened(node), RecordedEvents()
    made.driver.run(recorded, [])
    return made, recorded


async def the_end(recorded: RecordedEvents) -> tuple[CheckpointWritten, list[Progressed]]:
    """How the next write ended, and the parts of which it told before."""
    parts: list[Progressed] = []
    while isinstance(event := await asyncio.wait_for(recorded.events.get(), 60.0), Progressed):
        parts.append(event)
    assert isinstance(event, CheckpointWritten)
    return event, parts


@dataclass
class Trainer:
    """A trainer's copies in `folder`, and what its machine was told."""

    of: Manifest
    own: Session
    recorded: RecordedEvents
    donor: Donor
    member: Member
    folder: StateFolder
    output: Path
    checkpoints: Checkpoints

    def write(self, version: int, last: bool = False) -> None:
        self.checkpoints.write(self.own, WriteCheckpoint(version, Roster(((self.member,),) * self.of.stages), last))

    async def list_from_here(self, version: int) -> None:
        """Have the donor ask for a stage's file, as whoever begins to copy the version does."""
        self.donor.session.driver.perform([Connect((member_of(self.own),))])
        elements = state_tensor_lengths(self.of, 1)
        await list_state(self.donor.session.requests, self.own.me, 1, version, elements)

    @property
    def versions(self) -> list[int]:
        """Those on its disk."""
        return [found.version for found in checkpoints(self.folder.checkpoints)]

    async def next_event(self) -> Event:
        while isinstance(event := await asyncio.wait_for(self.recorded.events.get(), DEADLINE_S), Progressed):
            continue
        return event

    async def written(self, version: int, last: bool = False) -> CheckpointWritten:
        self.write(version, last)
        event = await self.next_event()
        assert isinstance(event, CheckpointWritten)
        return event


@asynccontextmanager
async def trainer(
    tmp_path: Path, folder: Path, *, at_once: bool = True, copying_s: float = COPYING_S
) -> AsyncIterator[Trainer]:
    """Beside one that gives it every version, at once or as soon as it may."""
    of, text, output = manifest(), tmp_path / "text", tmp_path / "out"
    text.write_bytes(bytes(range(256)))
    with ExitStack() as stack:
        state = StateFolder.open(stack, folder, output)
        async with started(tmp_path, 2) as nodes:
            (own, recorded), (other, _) = [await session(node) for node in nodes]
            donor = Donor(of, other)
            member = donor.serve(at_once=at_once)
            own.driver.perform([Connect((member,))])
            data = corpus(tmp_path, path=str(text))
            made = Checkpoints(of, state, RunSection(output=output, keep_exports=1), None, data, 4, copying_s)
            made.begin(own, None)
            yield Trainer(of, own, recorded, donor, member, state, output, made)
            await own.close()
            await other.close()


async def test_a_write_of_which_nothing_comes_is_abandoned_and_begun_again(tmp_path: Path) -> None:
    """The leader gives it up; what was abandoned tells nothing any more and holds up no other write."""
    async with trainer(tmp_path, tmp_path / "state", at_once=False) as t:
        t.write(VERSION)
        await t.donor.asked.wait()
        t.checkpoints.abandon()
        t.donor.go.set()
        t.write(VERSION)
        written, parts = await the_end(t.recorded)
        assert written.ok
        assert parts[-1] == Progressed("save", version=VERSION)
        assert len(parts) > t.of.stages, "each chunk is told of"
        assert t.recorded.events.empty()


async def test_a_version_that_is_asked_for_again_while_it_is_copied_is_copied_once(tmp_path: Path) -> None:
    """A trainer copies what the leader has written; when that one dies, it may have to write the same version."""
    async with trainer(tmp_path, tmp_path / "state", at_once=False) as t:
        t.write(VERSION)
        await t.donor.asked.wait()
        t.write(VERSION)
        t.donor.go.set()
        for _ in range(2):
            written, _ = await the_end(t.recorded)
            assert (written.version, written.ok, len(written.roots)) == (VERSION, True, t.of.stages)
        assert sorted(t.donor.listed) == list(range(t.of.stages))


async def test_a_full_disk_is_asked_before_anything_is_copied_and_takes_the_version_when_there_is_room(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        async with trainer(tmp_path, disk.path / "state") as t:
            assert (await t.written(3)).ok
            disk.fill()
            t.donor.listed.clear()
            failed = await t.written(7)
            assert (failed.ok, t.donor.listed) == (False, [])
            assert failed.space is not None
            assert failed.space.needed_bytes > failed.space.free_bytes
            assert failed.space.path.startswith(str(disk.path))
            assert f"needs {readable_size(failed.space.needed_bytes)} in {failed.space.path}" in failed.reason
            t.folder.keep_newest_seen(7)
            t.folder.beat()
            disk.empty()
            assert (await t.written(7)).ok
            t.folder.beat()
            assert read_sealed(t.folder.path / "known") == b"7", "what could not be kept is written later"


async def test_a_disk_that_went_read_only_is_told_and_written_to_when_it_may_be(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state" / "checkpoints", 4 << 20) as disk:
        async with trainer(tmp_path, tmp_path / "state") as t:
            disk.remount("ro")
            refused = await t.written(9)
            assert (refused.ok, refused.space) == (False, None)
            assert "Read-only file system" in refused.reason
            disk.remount("rw")
            assert (await t.written(9)).ok


async def test_what_is_in_the_way_of_an_export_costs_no_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with trainer(tmp_path, tmp_path / "state") as t:
        for name in ("final", "step-4"):
            (t.output / name).mkdir(parents=True)
            (t.output / name / "mine").write_text("years of work")
        written = await t.written(4, last=True)
        assert (written.ok, written.exported) == (True, False)
        assert "final holds something that swarmflow did not write" in written.reason
        (t.output / "final" / "mine").unlink()
        written = await t.written(4, last=True)
        assert (written.ok, written.exported, written.reason) == (True, True, "")
        assert (t.output / "final" / "config.json").is_file()
        assert (t.output / "step-4" / "mine").read_text() == "years of work"
        for version in (8, 12):
            assert (await t.written(version)).ok
        assert sorted(path.name for path in t.output.glob("step-*")) == ["step-12", "step-4"]
    assert any("version 4 is not exported" in record.message for record in caplog.records)


async def test_a_corrupt_file_of_the_newest_version_is_told_by_the_first_who_asks_for_it(tmp_path: Path) -> None:
    async with trainer(tmp_path, tmp_path / "state") as t:
        older, newer = [await t.written(version) for version in (3, 7)]
        file = t.folder.checkpoints / "version-00000007" / "stage-1.safetensors"
        flip_bit(file, Random(0))
        requests, elements = t.donor.session.requests, state_tensor_lengths(t.of, 1)
        t.donor.session.driver.perform([Connect((member_of(t.own),))])
        with pytest.raises(NetworkError, match="corrupt"):
            await list_state(requests, t.own.me, 1, 7, elements)
        changed = await t.next_event()
        assert isinstance(changed, DiskChanged)
        assert (changed.version, changed.roots) == (3, older.roots)
        assert changed.parts == (Holding(Snapshot(7, newer.roots), (0,)),)
        assert file.with_name("stage-1.safetensors.corrupt").is_file()
        with pytest.raises(NetworkError, match="is not on this trainer's disk"):
            await list_state(requests, t.own.me, 1, 7, elements)
        await list_state(requests, t.own.me, 0, 7, state_tensor_lengths(t.of, 0))
        roster = Roster(((t.member,),) * t.of.stages)
        t.donor.listed.clear()
        t.checkpoints.write(t.own, WriteCheckpoint(7, roster, roots=newer.roots))
        assert await t.next_event() == CheckpointWritten(7, True, roots=newer.roots)
        assert t.donor.listed == [1], "only what was lost is fetched"


async def test_versions_that_somebody_deletes_are_missed_and_written_again(tmp_path: Path) -> None:
    async with trainer(tmp_path, tmp_path / "state") as t:
        t.checkpoints.look()
        assert (await t.written(7)).ok
        t.checkpoints.look()
        shutil.rmtree(tmp_path / "state")
        assert t.folder.beat()
        t.checkpoints.look()
        changed = await t.next_event()
        assert isinstance(changed, DiskChanged)
        assert (changed.version, changed.parts) == (0, ())
        assert (await t.written(7)).ok
        assert (t.folder.checkpoints / "version-00000007" / "stage-1.safetensors").is_file()


async def test_a_version_stays_while_somebody_copies_it_and_of_more_those_that_were_asked_for_last(
    tmp_path: Path,
) -> None:
    async with trainer(tmp_path, tmp_path / "state") as t:
        for version in (1, 2, 3, 5, 6):
            assert (await t.written(version)).ok
            for asked in (version, 1):
                await t.list_from_here(asked)
        assert SPARED_MAX == 2
        assert t.versions == [6, 5, 3, 1]
        (t.folder.checkpoints / "version-00000001" / "stage-1.safetensors").unlink()
        await t.list_from_here(1)  # from the file that is open, which nobody has to read anew


async def test_a_version_that_nobody_copies_any_more_is_deleted(tmp_path: Path) -> None:
    async with trainer(tmp_path, tmp_path / "state", copying_s=0.0) as t:
        assert (await t.written(1)).ok
        await t.list_from_here(1)
        for version in (2, 3):
            assert (await t.written(version)).ok
        assert t.versions == [3, 2]


async def test_versions_that_are_copied_make_room_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        async with trainer(tmp_path, disk.path / "state") as t:
            for version in (1, 2):
                assert (await t.written(version)).ok
                await t.list_from_here(version)
            for version in (3, 5):
                assert (await t.written(version)).ok
            assert t.versions == [5, 3, 2, 1]
            disk.fill()
            assert (await t.written(6)).space is not None
            assert t.versions == [5, 3]
            assert (await t.written(6)).ok


async def test_versions_that_are_copied_make_room_for_the_exported_model(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        async with trainer(disk.path, disk.path / "state") as t:
            for version in (1, 2):
                assert (await t.written(version)).ok
                await t.list_from_here(version)
            for version in (3, 5):
                assert (await t.written(version)).ok
            disk.fill()
            ended = await t.written(5, last=True)
            assert ended.ok
            assert ended.exported, ended.reason
            assert t.versions == [5, 3]


def member_of(session: Session) -> Member:
    return Member(session.me, -1, 1, tuple(session.node.addresses()))
