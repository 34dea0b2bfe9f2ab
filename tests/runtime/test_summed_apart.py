"""A peer sums a piece of another stage, whatever weights its own stage has."""

from __future__ import annotations

import pytest

from swarmflow.compute.blockwise_sums import BlockwiseSums
from swarmflow.core.protocol.actions import SumPiece
from swarmflow.core.protocol.events import PieceReduced
from swarmflow.runtime.execution.computation import LATER
from tests.compute.models import config_of
from tests.runtime.manifests import manifest
from tests.runtime.stage_peers import EPOCH, peers

pytestmark = pytest.mark.asyncio


async def test_a_stage_that_shares_all_its_weights_sums_the_pieces_of_a_first_step() -> None:
    """Its own group has no elements, and a grid of none must not tell how wide the numbers of a piece are."""
    model = {**config_of("gpt2"), "shared_blocks": 1}
    of = manifest(model=model, cut=(1, 2), tied=False, accumulate="fp32", reduce_codec="blockwise16")
    async with peers(of, stage=1) as [peer]:
        assert peer.host.served is not None
        groups = peer.host.served.groups(EPOCH.step)
        shared = groups["shared-0"].sums
        assert groups["own"].sums.elements == 0
        assert isinstance(shared, BlockwiseSums)

        def begin_first_step() -> None:
            shared.grid.spacings.zero_()
            shared.zero()

        await peer.compute.call(LATER, begin_first_step)  # after the peer's own reset
        part = peer.keep(bytes(shared.pack(0, shared.elements)))
        summed = await peer.ask(SumPiece(EPOCH, 1, "stage-0", 0, 0, shared.elements, (part, part), apart=True))
        assert isinstance(summed, PieceReduced)
        wanted = shared.empty(shared.elements)
        wanted.total(0, shared.elements, [shared, shared])
        assert summed.digest == wanted.digest(0, shared.elements)
