"""A bit flips in a sum after its owner has made it: the peer that holds it knows, without asking another one."""

from __future__ import annotations

import pytest
import torch

from swarmflow.compute.sums import TensorSums
from swarmflow.core.protocol.actions import Seal, StorePiece, SumPiece
from swarmflow.core.protocol.events import LossComputed, PieceReduced, Sealed
from tests.runtime.manifests import manifest
from tests.runtime.stage_peers import EPOCH, Peer, peers

pytestmark = pytest.mark.asyncio

GROUP = "stage-1"


async def summed(peer: Peer) -> tuple[str, int]:
    """The owner adds nothing to its own gradient. Returns the digest of the one piece, and its elements."""
    assert isinstance(await peer.loss(0), LossComputed)
    assert peer.host.served is not None
    elements = peer.host.served.stage.groups["own"].sums.elements
    event = await peer.ask(SumPiece(EPOCH, 1, GROUP, 0, 0, elements, (None,)))
    assert isinstance(event, PieceReduced)
    return event.digest, elements


async def digest_of(peer: Peer, piece: str) -> str:
    sealed = await peer.ask(Seal(EPOCH, 1, (GROUP,), (), ((GROUP, (piece,)),)))
    assert isinstance(sealed, Sealed)
    [(_, _, digest)] = sealed.results
    return digest


@pytest.mark.parametrize("accumulate", ["exact", "fp32"])
async def test_the_owner_and_who_has_received_the_sum_have_one_digest_until_a_bit_flips(accumulate: str) -> None:
    async with peers(manifest(accumulate=accumulate), count=2) as (owner, other):
        piece, elements = await summed(owner)
        assert owner.host.served is not None
        body = owner.keep(bytes(owner.host.served.reduced["own"].pack(0, elements)))
        received = other.keep(bytes(owner.driver.store.get(body)))
        assert isinstance(await other.ask(StorePiece(EPOCH, 1, GROUP, 0, 0, elements, received)), PieceReduced)
        whole = await digest_of(owner, piece)
        assert whole == await digest_of(other, piece) != ""
        for peer in (owner, other):
            assert peer.host.served is not None
            sums = peer.host.served.reduced["own"]
            assert isinstance(sums, TensorSums)
            flipped = sums.flat.view(torch.uint8)
            flipped[5] ^= 1
            assert await digest_of(peer, piece) == ""
