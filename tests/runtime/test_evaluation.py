"""A forward pass for the validation loss: computed for a trainer that has signed the request, and for nobody else."""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from swarmflow.authority.access import AccessControl
from swarmflow.core.protocol.types import Member, ProcessId, Roster
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.evaluation import QUEUED_MAX, Batch, EvaluationService, _signed, measure_loss
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.transport.wire import Evaluate, Response, encode_header
from tests.owners import OWNER, RUN_ID, trainer_access
from tests.runtime.manifests import SHAPE, manifest
from tests.runtime.nodes import DEADLINE_S, started, until
from tests.runtime.stage_peers import EPOCH, RecordedEvents, peers
from tests.runtime.test_admission import PEER, opened

pytestmark = pytest.mark.asyncio

FORGED: dict[str, Callable[[Evaluate], Evaluate]] = {
    "without a credential": lambda signed: replace(signed, credential=b""),
    "without a signature": lambda signed: replace(signed, signature=b""),
    "of another request": lambda signed: replace(signed, ask=signed.ask + 1000),
    "of another life": lambda signed: replace(signed, asker_incarnation=signed.asker_incarnation + 1),
}


def signed_by(access: AccessControl, name: str, incarnation: int, ask: int) -> Evaluate:
    """A request for the loss of a batch at the last stage."""
    proof = access.sign(name, _signed(ask, EPOCH.step, incarnation))
    return Evaluate(ask, EPOCH.step, SHAPE[0], name, incarnation, (), *proof)


async def test_only_what_a_trainer_has_signed_is_computed(tmp_path: Path) -> None:
    """Requests are computed and answered in order, so none of those before the last one has been."""
    async with started(tmp_path, 2) as nodes, peers(manifest()) as (peer,):
        trainer, server = await opened(nodes[0], trainer_access()), await opened(nodes[1], AccessControl(RUN_ID, PEER))
        server.links.set_addresses(trainer.me, trainer.node.addresses())
        service, me = EvaluationService(server, peer.host), trainer.me
        bodies = [memoryview(peer.driver.store.get(ref)) for ref in (peer.hidden(0), peer.tokens(0))]
        forged = []
        for forge in FORGED.values():
            ask, future = trainer.requests.expect(server.me)
            forged.append(future)
            service.handle(forge(signed_by(trainer.access, *me, ask)), bodies)
        ask, future = trainer.requests.expect(server.me)
        forged.append(future)
        service.handle(signed_by(AccessControl(RUN_ID, OWNER.certify("peer")), *me, ask), bodies)
        ask, answer = trainer.requests.expect(server.me)
        service.handle(signed_by(trainer.access, *me, ask), bodies)
        [body] = await answer
        loss, targets = msgspec.json.decode(body, type=tuple[float, int])
        assert (loss > 0.0, targets) == (True, SHAPE[0] * SHAPE[1])
        assert not any(future.done() for future in forged)
        await server.close(0.0)
        await trainer.close(0.0)


async def test_a_request_is_computed_once_a_version_and_not_too_many_wait(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as nodes, peers(manifest()) as (peer,):
        trainer, server = await opened(nodes[0], trainer_access()), await opened(nodes[1], AccessControl(RUN_ID, PEER))
        server.links.set_addresses(trainer.me, trainer.node.addresses())
        service, served = EvaluationService(server, peer.host), peer.host.served
        bodies = [memoryview(peer.driver.store.get(ref)) for ref in (peer.hidden(0), peer.tokens(0))]
        assert served is not None
        go = threading.Event()
        peer.compute.submit((-1.0,), lambda: go.wait(DEADLINE_S), lambda _: None)
        await until(lambda: peer.compute.working and not peer.compute.waiting)

        def waiting_after(ask: int) -> int:
            service.handle(signed_by(trainer.access, *trainer.me, ask), bodies)
            return peer.compute.waiting

        ask, answer = trainer.requests.expect(server.me)
        assert [waiting_after(ask), waiting_after(ask), waiting_after(ask + 1)] == [1, 1, 2]
        assert [waiting_after(ask + 2 + more) for more in range(QUEUED_MAX)][-3:] == [QUEUED_MAX] * 3
        served.version += 1  # as an update does that was queued before
        go.set()
        with pytest.raises(NetworkError, match="is over"):
            await answer
        await server.close(0.0)
        await trainer.close(0.0)


@pytest.mark.parametrize(
    "answer", [b"[1e308,1]", b"[1.0,1" + b"0" * 400 + b"]", b"[1.0,-5]", b"[1e400,1]", b"[null,1]", b"[1.0]", b"\xff"]
)
async def test_an_answer_that_cannot_be_is_no_loss(
    answer: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a peer of the last stage says, the trainer goes on without a validation loss."""
    async with started(tmp_path, 2) as nodes:
        trainer, lying = (Session(node, trainer_access(), Metrics()) for node in nodes)

        def lie(message: Evaluate, bodies: list[memoryview]) -> None:
            asker = ProcessId(message.asker, message.asker_incarnation)
            lying.links.send(asker, encode_header(Response(message.ask)), [answer])

        for session, evaluate in ((trainer, None), (lying, lie)):
            session.open({}, lambda body: bytes, evaluate)
            session.driver.run(RecordedEvents(), [])
            await session.links.start()
        trainer.links.set_addresses(lying.me, lying.node.addresses())
        returned: list[list[ProcessId]] = []
        roster = Roster(stages=((Member(lying.me, 0),),))
        found = await measure_loss(trainer, 3, roster, batches(), returned.append)
        assert math.isnan(found)
        assert returned == []
        assert "the validation loss of version 3 could not be measured" in caplog.text
        await lying.close(0.0)
        await trainer.close(0.0)


async def batches() -> AsyncIterator[Batch]:
    """Two."""
    for _ in range(2):
        yield np.zeros(SHAPE[:2], np.int32), np.zeros(SHAPE[:2], np.int32)
