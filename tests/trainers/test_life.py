"""One life of a trainer: what it leaves behind for the next one."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from swarmflow import __version__
from swarmflow.core.protocol.events import Received
from swarmflow.core.protocol.messages import Join, Message, Ready
from swarmflow.core.protocol.types import Member, ProcessId
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Session
from swarmflow.view.timeline import Timeline
from tests.owners import trainer_access
from tests.runtime.manifests import manifest
from tests.runtime.nodes import started
from tests.runtime.test_node import NAME
from tests.trainers.test_data import configured, opened
from trainers.found import OnDisk
from trainers.life import TrainerLife
from trainers.state import StateFolder

OTHER = Member(ProcessId(NAME, 1), -1, 1, (f"/ip4/127.0.0.1/tcp/9/p2p/{NAME}",))


@pytest.mark.asyncio
async def test_a_trainer_remembers_the_others_from_the_opening_of_their_first_step(tmp_path: Path) -> None:
    """Killed before that step is committed, its next life looks for the heir and begins no second lineage."""
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 4)
    of = manifest()
    config = configured(path=str(text))
    config = replace(config, run=replace(config.run, output=tmp_path / "out"))
    with ExitStack() as stack:
        folder = StateFolder.open(stack, tmp_path / "trainer", tmp_path / "out")
        async with started(tmp_path, 1) as [node]:
            session = Session(node, trainer_access(), Metrics())
            life = TrainerLife(
                session, config, opened(tmp_path, path=str(text)), folder, None, Timeline(), lambda: None
            )
            session.open(life.effects(), life.read)
            life.lead(of, OnDisk(None, 0))

            def hear(sender: ProcessId, message: Message) -> None:
                session.driver.post(Received(sender, message))

            peers = [Member(ProcessId(f"QmPeer{stage}", 1), stage) for stage in range(of.stages)]
            for member in (OTHER, *peers):
                role = "trainer" if member.stage < 0 else "peer"
                hear(member.process, Join(role, __version__, of.fingerprint, member))
            assert folder.trainers == ()
            for peer in peers:
                hear(peer.process, Ready(peer.stage, 0, "digest", 4))
            assert folder.trainers == OTHER.addresses
            await session.close()
