"""A stage that outlives its leader in memory: a reduced gradient is applied in the next life as it would have been."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peers.kept import BetweenLives, KeptStage
from swarmflow.core.protocol.actions import Apply, RunForward, Seal
from swarmflow.core.protocol.events import Applied, Sealed
from swarmflow.core.protocol.messages import Held, state_name
from swarmflow.core.protocol.types import Microbatch
from tests.runtime.manifests import SUMS, manifest
from tests.runtime.stage_peers import EPOCH, GROUPS, Peer, peers

pytestmark = pytest.mark.asyncio

FIRST = (0.0,)
APPLY = Apply(EPOCH, 0.25, 0.01)
UPCOMING = state_name("lineage", EPOCH, 1)
HELD = Held(1, EPOCH.step, state_name("lineage", EPOCH.former, 1), upcoming=UPCOMING)


async def sealed(peer: Peer) -> None:
    """A step's gradient is accumulated and reduced by a peer that is alone in its stage."""
    for index in range(peer.of.microbatches):
        await peer.loss(index)
    assert isinstance(await peer.ask(Seal(EPOCH, 1, GROUPS, GROUPS)), Sealed)


@pytest.mark.parametrize("sums", SUMS)
async def test_a_reduced_gradient_that_was_kept_makes_the_same_update(sums: str) -> None:
    async with peers(manifest(**SUMS[sums]), 2) as (one, other):
        await sealed(one)
        await sealed(other)
        assert await one.ask(APPLY) == Applied(APPLY.epoch)
        assert other.host.served is not None
        kept = KeptStage(HELD, other.host.served, "run", 4)
        await other.compute.call(FIRST, kept.settle)
        kept.served.update(APPLY.epoch.step, APPLY.scale, APPLY.learning_rate)
        assert one.host.served is not None
        assert kept.served.state.digest() == one.host.served.state.digest()
        assert kept.served.version == EPOCH.step + 1


async def test_what_belongs_to_a_step_without_a_ballot_is_freed() -> None:
    async with peers(manifest()) as (peer,):
        await peer.loss(0)
        await peer.ask(RunForward(Microbatch(EPOCH, 1), peer.hidden(1), peer.tokens(1)))
        served = peer.host.served
        assert served is not None
        assert served.runner(EPOCH.step).held == 1
        await peer.compute.call(FIRST, KeptStage(replace(HELD, upcoming=""), served, "run", 4).settle)
        assert served.runner(EPOCH.step).held == 0
        assert not any(group.summed.any() for group in served.stage.groups.values())


async def test_it_is_handed_over_to_its_run_alone() -> None:
    async with peers(manifest()) as (peer,):
        assert peer.host.served is not None
        kept = KeptStage(HELD, peer.host.served, "run", 4)
        between = BetweenLives(kept)
        assert between.of("run") is between.of("run") is kept, "until it is served, a life may end again"
        assert between.of("another run") is None
        assert between.kept is None, "it takes no memory for nothing"
