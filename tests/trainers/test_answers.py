"""What a trainer answers over the links, and how often."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from swarmflow.authority.access import AccessControl
from swarmflow.errors import NetworkError
from swarmflow.runtime.transport.requests import BusyError
from swarmflow.view.timeline import Timeline
from tests.owners import RUN_ID, trainer_access
from tests.runtime.manifests import manifest
from tests.runtime.nodes import started
from tests.runtime.test_admission import PEER, opened
from trainers.answers import PASSED_ON, TrainerAnswers
from trainers.state import StateFolder


@pytest.mark.asyncio
async def test_who_asks_for_the_status_without_end_is_refused_and_a_trainer_that_passes_questions_on_is_not(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        folder = StateFolder.open(stack, None, tmp_path)
    async with started(tmp_path, 3) as nodes:
        leader, other = [await opened(node, trainer_access()) for node in nodes[:2]]
        peer = await opened(nodes[2], AccessControl(RUN_ID, PEER))
        TrainerAnswers(leader, folder, Timeline("one"), lambda: 0.0).serve(manifest())
        for asker in (other, peer):
            asker.links.set_addresses(leader.me, leader.node.addresses())
        for _ in range(16):
            with pytest.raises(NetworkError, match="does not lead"):
                await peer.requests.ask(leader.me, "status")
        with pytest.raises(BusyError):
            await peer.requests.ask(leader.me, "status")
        with pytest.raises(NetworkError, match="for trainers"):
            await peer.requests.ask(leader.me, PASSED_ON)
        for _ in range(20):
            with pytest.raises(NetworkError, match="does not lead"):
                await other.requests.ask(leader.me, PASSED_ON)
        for session in (other, peer, leader):
            await session.close(0.0)
