"""A short session in a run, for a command that is neither peer nor trainer."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.operations.finding import FoundRun, find_leader
from swarmflow.runtime.transport.invite import Invite
from swarmflow.runtime.transport.node import Node

FIND_S = 8.0  # a user waits


@asynccontextmanager
async def visit(invite: Invite) -> AsyncIterator[tuple[Session, FoundRun]]:
    """Open a session in the run's network, and find its leader. Raises NetworkError when no trainer answers."""
    with tempfile.TemporaryDirectory(prefix="swarmflow-visit-") as scratch:
        identity = Path(scratch) / "identity.key"
        node = await Node.start(identity_path=identity, bootstrap=list(invite.trainers), client_mode=True)
        try:
            session = Session(node, invite.run_id, Metrics())
            session.open({}, lambda body: b"")
            await session.links.start()
            try:
                yield session, await find_leader(session, invite, timeout_s=FIND_S)
            finally:
                await session.close()
        finally:
            await node.stop()
