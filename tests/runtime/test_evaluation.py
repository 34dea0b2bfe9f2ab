"""A forward pass for the validation loss: computed for a trainer that has signed the request, and for nobody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from swarmflow.authority.access import AccessControl
from swarmflow.runtime.execution.evaluation import EvaluationService, _signed
from swarmflow.runtime.transport.wire import Evaluate
from tests.owners import OWNER, RUN_ID, trainer_access
from tests.runtime.manifests import SHAPE, manifest
from tests.runtime.nodes import started
from tests.runtime.stage_peers import EPOCH, peers
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
