"""Connects a command that is neither peer nor trainer to a run, for as long as the command needs it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from swarmflow.authority.access import AccessControl
from swarmflow.core.protocol.types import Body
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.execution.store import Buffer
from swarmflow.runtime.operations.finding import FoundRun, find_leader
from swarmflow.runtime.transport.invite import Invite
from swarmflow.runtime.transport.node import Node

FIND_LEADER_S = 8.0  # the longest search for the leader: a user is waiting


@asynccontextmanager
async def visit(
    invite: Invite, listen: str = "127.0.0.1:0", announce: Sequence[str] = ()
) -> AsyncIterator[tuple[Session, FoundRun]]:
    """Join the network of a run under an identity of its own, and find the leader; leave at the end of the block.

    The node dials others and is not found by them; so a user who trains on this machine too keeps that identity.
    listen, announce: as of a peer, for a command that wants to know how a peer would be reached.

    Raises NetworkError when the network cannot be joined, or no trainer that leads answers.
    """
    with tempfile.TemporaryDirectory(prefix="swarmflow-visit-") as scratch:
        identity = Path(scratch) / "identity.key"
        node = await Node.start(
            identity_path=identity,
            listen=[listen],
            announce=announce,
            bootstrap=list(invite.trainers),
            client_mode=True,
        )
        try:
            session = Session(node, AccessControl(invite.run_id, invite.key), Metrics())
            session.open(effects={}, read=_has_no_gradient)
            try:
                await session.links.start()
                found = await find_leader(session, invite, timeout_s=FIND_LEADER_S)
                yield session, found
            finally:
                await session.close()
        finally:
            await node.stop()


def _has_no_gradient(body: Body) -> Callable[[], Buffer]:
    raise NetworkError("a command serves no stage, and has no gradient to send")
