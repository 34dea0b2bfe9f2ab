"""One incarnation of a peer on a real network: what ends it before it has joined, and what it waits for."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from peers.copies import CopyKeeper
from peers.ending import Signals
from peers.kept import BetweenLives, KeptStage
from peers.left import LeftState
from peers.memory import JoinedRun
from peers.options import PeerOptions
from peers.process import OverLives, one_life
from swarmflow import __version__
from swarmflow.core.protocol.actions import Exit
from swarmflow.core.protocol.messages import Held
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.operations.finding import Description
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.requests import Arguments
from tests.owners import OWNER, RUN_ID, invite_of
from tests.runtime.manifests import manifest
from tests.runtime.nodes import started, until
from tests.runtime.stage_peers import peers
from tests.runtime.test_kept_stage import HELD
from tests.runtime.test_session import opened

pytestmark = pytest.mark.asyncio


def options(node: Node) -> PeerOptions:
    """Of a peer that was invited by a node."""
    invite = invite_of(*node.addresses())
    return PeerOptions(
        invite,
        stage=-1,
        device="cpu",
        capacity=4,
        metrics_port=None,
        metrics_host="",
        metrics_token=None,
        state_dir=None,
        keep_copies=False,
        listen="127.0.0.1:0",
        announce=(),
        drain_seconds=1.0,
        journal_bytes_max=1 << 20,
        memory_limit=None,
        upload_limit=None,
        recompute=False,
        rebalance_period=0.0,
        stay=False,
    )


async def life(folder: Path, trainer: Node, node: Node, left: LeftState, between: BetweenLives, stop: Signals) -> Exit:
    """That of a peer which was a member of the run once; as a rule it waits."""
    copies, given = CopyKeeper(folder / "copies", keeps=False), options(trainer)
    memory = JoinedRun(folder)
    own = OverLives.of(given, memory, Metrics(), node)
    outcome = await one_life(given, memory, node, own, copies, left, between, stop, first=False)
    assert isinstance(outcome, Exit)
    return outcome


def describe(session: Session, software: str) -> None:
    """It says that it leads a run of this software."""

    async def answer(sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        leader = (session.me.name, session.me.incarnation, tuple(session.node.addresses()))
        of = manifest(run_id=RUN_ID)
        policy = OWNER.policy(0, of.fingerprint, "invited", ())
        return [msgspec.json.encode(Description(software, leader)), of.encode(), policy.encode()]

    session.requests.serve("describe", answer)


class SlowLeft(LeftState):
    """A folder with many GB: to read it takes as long as it takes."""

    def __init__(self) -> None:
        super().__init__(None)
        self.begun, self.ended = threading.Event(), threading.Event()

    def find(self, run: str) -> Held | None:
        """Nothing, in the end."""
        self.begun.set()
        self.ended.wait(20)
        return None


async def test_who_waits_keeps_what_it_has_when_its_network_dies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "swarmflow"):
        async with started(tmp_path, 2) as [trainer, node], peers(manifest()) as (peer,):
            assert peer.host.served is not None
            between = BetweenLives(KeptStage(HELD, peer.host.served, "fingerprint", 4))
            waiting = asyncio.create_task(life(tmp_path, trainer, node, LeftState(None), between, Signals()))
            await until(lambda: "waiting for a trainer" in caplog.text)
            os.kill(node.daemon_pid, signal.SIGKILL)
            with pytest.raises(NetworkError, match="daemon"):
                await waiting
            assert between.kept is not None


async def test_who_was_a_member_waits_for_a_trainer_that_fits_and_can_be_told_to_go_while_it_reads_its_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody starts the trainer with other software by mistake: the peers may hold the newest version."""
    with caplog.at_level(logging.INFO, "swarmflow"):
        async with started(tmp_path, 2) as [other, node]:
            trainer, left, stop = await opened(other), SlowLeft(), Signals()
            describe(trainer, "another")
            between = BetweenLives()
            waiting = asyncio.create_task(life(tmp_path, other, node, left, between, stop))
            await until(lambda: "this run uses swarmflow another" in caplog.text)
            describe(trainer, __version__)
            assert await asyncio.to_thread(left.begun.wait, 10)
            stop.on_signal()
            assert (await waiting).reason == "left before it had joined"
            left.ended.set()
            await trainer.close()
    [warning] = [record for record in caplog.records if "swarmflow another" in record.getMessage()]
    assert warning.levelno == logging.WARNING
