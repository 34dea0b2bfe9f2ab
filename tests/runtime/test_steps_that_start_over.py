"""What is summed in a step that starts over with another exponent is scaled by that exponent, and by no earlier one."""

from __future__ import annotations

import threading

import pytest

from swarmflow.compute.blockwise_sums import BlockwiseSums
from swarmflow.compute.exact import EXPONENT
from swarmflow.core.protocol.actions import Apply, Reset, Seal, SumPiece
from swarmflow.core.protocol.events import Applied, LossComputed, PieceReduced, Sealed
from swarmflow.core.protocol.types import Ref
from swarmflow.runtime.execution.served import Served
from tests.runtime.manifests import SUMS, manifest
from tests.runtime.nodes import DEADLINE_S
from tests.runtime.stage_peers import EPOCH, GROUPS, Peer, peers

pytestmark = pytest.mark.asyncio

LOWER = EXPONENT - 16  # as a step has it that starts over because of one Overflow


def stage_of(peer: Peer) -> Served:
    assert peer.host.served is not None
    return peer.host.served


def pieces(peer: Peer, own: Ref | None = None, tied: Ref | None = None) -> list[SumPiece]:
    """The one piece of each group, of one part; None: what the peer has accumulated."""
    lengths = [stage_of(peer).stage.groups[name].sums.elements for name in ("own", "tied")]
    each = zip(GROUPS, lengths, (own, tied), strict=True)
    return [SumPiece(EPOCH, 1, group, 0, 0, length, (part,)) for group, length, part in each]


async def accumulate(peer: Peer, exponent: int) -> None:
    """Begin a first step, and compute its microbatches."""
    for group in stage_of(peer).stage.groups.values():
        if isinstance(group.sums, BlockwiseSums):
            group.sums.grid.spacings.zero_()  # nothing was learnt yet
    peer.driver.perform([Reset(exponent)])
    for index in range(peer.of.microbatches):
        assert isinstance(await peer.loss(index), LossComputed)


async def reduce(peer: Peer) -> Sealed:
    """Take the own gradient as the sum."""
    for piece in pieces(peer):
        assert isinstance(await peer.ask(piece), PieceReduced)
    return await seal(peer)


async def seal(peer: Peer) -> Sealed:
    sealed = await peer.ask(Seal(EPOCH, 1, GROUPS, ()))
    assert isinstance(sealed, Sealed)
    return sealed


async def update(peer: Peer) -> str:
    """Apply what is reduced; return the root of the state."""
    assert await peer.ask(Apply(EPOCH, scale=0.25, learning_rate=0.01)) == Applied(EPOCH)
    return stage_of(peer).hash(stage_of(peer).version)


@pytest.mark.parametrize("sums", ["exact", "blockwise16"])
async def test_who_has_reduced_at_the_exponent_before_makes_the_update_of_who_has_not(sums: str) -> None:
    async with peers(manifest(**SUMS[sums]), 2) as (again, fresh):
        await accumulate(again, EXPONENT)
        await reduce(again)
        for peer in (again, fresh):
            await accumulate(peer, LOWER)
        assert await reduce(again) == await reduce(fresh)
        assert await update(again) == await update(fresh)


@pytest.mark.parametrize("sums", ["exact", "blockwise16"])
async def test_so_does_who_is_busy_with_the_try_before_until_all_others_have_computed(sums: str) -> None:
    """It has nothing to add, and its thread comes to the beginning of the step and to the sum in one go."""
    async with peers(manifest(**SUMS[sums]), 2) as (other, busy):
        for peer, exponent in ((other, LOWER), (busy, EXPONENT)):
            await accumulate(peer, exponent)
        gradients = [stage_of(other).stage.groups[name].sums for name in ("own", "tied")]
        parts = [busy.keep(bytes(each.pack(0, each.elements))) for each in gradients]
        free = threading.Event()
        busy.compute.submit((0.0,), lambda: free.wait(DEADLINE_S), lambda _: None)
        busy.driver.perform([Reset(LOWER), *pieces(busy, *parts)])
        free.set()
        assert [type(await busy.next()) for _ in GROUPS] == [PieceReduced, PieceReduced]
        assert await seal(busy) == await reduce(other)
        assert await update(busy) == await update(other)
