"""A trainer's copies of committed versions: whoever asks for one, and how often, it is copied once and whole."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from swarmflow.config import RunSection
from swarmflow.core.actions import Connect, WriteCheckpoint
from swarmflow.core.events import CheckpointWritten, Progressed
from swarmflow.core.types import Member, Roster
from swarmflow.manifest import Manifest
from swarmflow.runtime.exporting import state_elements
from swarmflow.runtime.metrics import Metrics
from swarmflow.runtime.node import Node
from swarmflow.runtime.session import Session
from swarmflow.runtime.state_transfer import Listing, serve_state
from tests.runtime.nodes import RUN_ID, run, started
from tests.runtime.test_stage_host import Heard, manifest
from tests.trainers.test_data import opened as corpus
from trainers.checkpoints import Checkpoints
from trainers.state import StateFolder

VERSION = 7


@dataclass
class Donor:
    """Holds zeros for every stage's state, and counts who asks. It gives nothing before `go`."""

    of: Manifest
    session: Session
    listed: list[int] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    def serve(self) -> Member:
        loop = asyncio.get_running_loop()

        def listing(stage: int, version: int) -> Listing:
            self.listed.append(stage)
            loop.call_soon_threadsafe(self.asked.set)
            asyncio.run_coroutine_threadsafe(self.go.wait(), loop).result()
            return Listing(state_elements(self.of, stage))

        serve_state(self.session.requests, listing, lambda stage, version, name, start, stop: bytes(4 * (stop - start)))
        return Member(self.session.me, -1, 1, tuple(self.session.node.addresses()))


async def session(node: Node) -> tuple[Session, Heard]:
    made, heard = Session(node, RUN_ID, Metrics()), Heard()
    made.open({}, lambda body: b"")
    await made.links.start()
    made.driver.run(heard, [])
    return made, heard


async def the_end(heard: Heard) -> tuple[CheckpointWritten, list[Progressed]]:
    """How the next write ended, and the parts of which it told before."""
    parts: list[Progressed] = []
    while isinstance(event := await asyncio.wait_for(heard.events.get(), 60.0), Progressed):
        parts.append(event)
    assert isinstance(event, CheckpointWritten)
    return event, parts


def test_a_write_of_which_nothing_comes_is_abandoned_and_begun_again(tmp_path: Path) -> None:
    """The leader gives it up; what was abandoned tells nothing any more and holds up no other write."""

    async def main() -> None:
        of, text = manifest(), tmp_path / "text"
        text.write_bytes(bytes(range(256)))
        with ExitStack() as stack:
            folder = StateFolder.open(stack, tmp_path / "trainer", tmp_path / "out")
            async with started(tmp_path, 2) as nodes:
                (own, heard), (other, _) = [await session(node) for node in nodes]
                donor = Donor(of, other)
                member = donor.serve()
                own.driver.perform([Connect((member,))])
                data = corpus(tmp_path, path=str(text))
                checkpoints = Checkpoints(of, folder, RunSection(output=tmp_path / "out"), None, data, every=1000)
                action = WriteCheckpoint(VERSION, Roster(((member,),) * of.stages))
                checkpoints.write(own, action)
                await donor.asked.wait()
                checkpoints.abandon()
                donor.go.set()
                checkpoints.write(own, action)
                written, parts = await the_end(heard)
                assert written.ok
                assert parts[-1] == Progressed("save", version=VERSION)
                assert len(parts) > of.stages, "each chunk is told of"
                assert heard.events.empty()
                await own.close()
                await other.close()

    run(main())


def test_a_version_that_is_asked_for_again_while_it_is_copied_is_copied_once(tmp_path: Path) -> None:
    """A trainer copies what the leader has written; when that one dies, it may have to write the same version."""

    async def main() -> None:
        of, text = manifest(), tmp_path / "text"
        text.write_bytes(bytes(range(256)))
        with ExitStack() as stack:
            folder = StateFolder.open(stack, tmp_path / "trainer", tmp_path / "out")
            async with started(tmp_path, 2) as nodes:
                (own, heard), (other, _) = [await session(node) for node in nodes]
                donor = Donor(of, other)
                member = donor.serve()
                own.driver.perform([Connect((member,))])
                data = corpus(tmp_path, path=str(text))
                checkpoints = Checkpoints(of, folder, RunSection(output=tmp_path / "out"), None, data, every=1000)
                action = WriteCheckpoint(VERSION, Roster(((member,),) * of.stages))
                checkpoints.write(own, action)
                await donor.asked.wait()
                checkpoints.write(own, action)
                donor.go.set()
                for _ in range(2):
                    written, _ = await the_end(heard)
                    assert (written.version, written.ok, len(written.digests)) == (VERSION, True, of.stages)
                assert sorted(donor.listed) == list(range(of.stages))
                await own.close()
                await other.close()

    run(main())
