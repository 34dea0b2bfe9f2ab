"""The norm of a reduced gradient is taken piece by piece as the pieces come, to the bit as from the whole gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from swarmflow.compute.families import model_config
from swarmflow.compute.sums import TensorSums
from swarmflow.core.commit.reduce import PIECE_ELEMENTS
from swarmflow.core.protocol.actions import Seal, SumPiece
from swarmflow.core.protocol.events import LossComputed, PieceReduced, Sealed
from tests.runtime.manifests import SUMS, manifest
from tests.runtime.stage_peers import EPOCH, Peer, peers

pytestmark = pytest.mark.asyncio

GROUP = "stage-1"
# Of more than one piece, so that the last one is cut short.
MODEL = {"model_type": "gpt2", "n_embd": 32, "n_layer": 26, "n_head": 2, "n_positions": 64, "vocab_size": 64} | {
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def ranges(peer: Peer) -> list[tuple[int, int]]:
    assert peer.host.served is not None
    elements = peer.host.served.stage.groups["own"].sums.elements
    return [(start, min(start + PIECE_ELEMENTS, elements)) for start in range(0, elements, PIECE_ELEMENTS)]


async def sum_piece(peer: Peer, ballot: int, piece: int) -> None:
    start, stop = ranges(peer)[piece]
    assert isinstance(await peer.ask(SumPiece(EPOCH, ballot, GROUP, piece, start, stop, (None,))), PieceReduced)


async def norm_of(peer: Peer, ballot: int) -> float:
    sealed = await peer.ask(Seal(EPOCH, ballot, (GROUP,), ()))
    assert isinstance(sealed, Sealed)
    [(_, squared, _)] = sealed.results
    return squared


@pytest.mark.parametrize("sums", SUMS)
async def test_the_norm_of_the_pieces_is_that_of_the_whole(sums: str) -> None:
    of: dict[str, Any] = {"model": model_config(MODEL), **SUMS[sums]}
    async with peers(manifest(**of)) as (peer,):
        assert isinstance(await peer.loss(0), LossComputed)
        assert peer.host.served is not None
        assert len(ranges(peer)) > 1
        for piece in reversed(range(len(ranges(peer)))):
            await sum_piece(peer, 1, piece)
        assert await norm_of(peer, 1) == peer.host.served.reduced["own"].sum_of_squares() > 0


async def test_pieces_of_another_ballot_do_not_count() -> None:
    """Where a ballot lacks one, the norm is that of the buffer: of the sums that were there before."""
    async with peers(manifest(model=model_config(MODEL), **SUMS["fp32"])) as (peer,):
        assert isinstance(await peer.loss(0), LossComputed)
        assert peer.host.served is not None
        for piece in range(len(ranges(peer))):
            await sum_piece(peer, 1, piece)
        first = await norm_of(peer, 1)
        reduced = peer.host.served.reduced["own"]
        assert isinstance(reduced, TensorSums)
        with torch.no_grad():
            reduced.flat.mul_(2)
        await sum_piece(peer, 2, 0)
        assert first < await norm_of(peer, 2) == reduced.sum_of_squares()
