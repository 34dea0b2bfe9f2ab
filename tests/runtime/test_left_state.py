"""A stage's state in the folder of a peer that left at once: the next life goes on from it, to the bit."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from peers.kept import Kept
from peers.left import LeftState
from swarmflow.core.actions import Reset
from swarmflow.core.events import Applied
from swarmflow.core.messages import Held
from swarmflow.errors import CheckpointError
from swarmflow.runtime.step_end import apply_update
from tests.disks import flip_bit, no_more_files
from tests.runtime.test_kept_stage import APPLY, FIRST, HELD, sealed
from tests.runtime.test_stage_host import Peer, manifest, peers

RUN = "fingerprint"


async def leave(peer: Peer, folder: Path, held: Held = HELD) -> None:
    """What a life leaves that has reduced the gradient of its step."""
    await sealed(peer)
    assert peer.host.served is not None
    kept = Kept(held, peer.host.served, RUN, 4)
    await peer.compute.call(FIRST, kept.settle)
    LeftState(folder).write(kept)


@pytest.mark.parametrize(("accumulate", "exponent"), [("exact", 36), ("exact", 20), ("fp32", 36)])
def test_the_next_life_makes_the_update_that_this_one_would_have_made(
    accumulate: str, exponent: int, tmp_path: Path
) -> None:
    """Also in a step whose gradients had been too large for the exponent with which a stage is built."""

    async def main() -> None:
        async with peers(manifest(accumulate=accumulate), 3) as (one, other, later):
            for peer in (one, other):
                peer.driver.perform([Reset(exponent)])
            await sealed(one)
            applied = await one.ask(APPLY)
            assert isinstance(applied, Applied)
            await leave(other, tmp_path / "left")
            found = LeftState(tmp_path / "left")
            assert found.find(RUN) == HELD
            assert later.host.served is not None
            kept = found.fill(later.host.served)
            assert (kept.held, kept.run, kept.capacity) == (HELD, RUN, 4)
            assert apply_update(kept.served, APPLY) == applied.digest
            found.remove()
            assert found.find(RUN) is None
            assert not list((tmp_path / "left").iterdir())

    asyncio.run(main())


def test_a_later_one_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with peers(manifest(), 2) as (one, other):
            await leave(one, tmp_path / "left", replace(HELD, upcoming=""))
            await leave(other, tmp_path / "left")
            found = LeftState(tmp_path / "left")
            assert found.find(RUN) == HELD
            assert other.host.served is not None
            assert found.fill(other.host.served).held.upcoming == HELD.upcoming

    asyncio.run(main())


def test_it_is_of_its_run_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with peers(manifest()) as (peer,):
            await leave(peer, tmp_path / "left")
            assert LeftState(tmp_path / "left").find("another run") is None
            assert LeftState(tmp_path / "left").find(RUN) == HELD, "it may come back"

    asyncio.run(main())


@pytest.mark.parametrize("name", ["held", "version-00000003/stage-1.safetensors", "version-00000003/manifest.json"])
def test_what_is_corrupt_is_told_of_kept_and_not_believed(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with peers(manifest()) as (peer,):
            await leave(peer, tmp_path / "left")
            flip_bit(tmp_path / "left" / name, Random(0))
            found = LeftState(tmp_path / "left")
            with caplog.at_level(logging.WARNING, "swarmflow"):
                assert found.find(RUN) is None
            assert "corrupt" in caplog.text
            assert list(tmp_path.rglob("*.corrupt"))
            assert peer.host.served is not None
            with pytest.raises(CheckpointError):
                found.fill(peer.host.served)

    asyncio.run(main())


def test_what_the_disk_does_not_give_now_stays_for_the_next_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with peers(manifest(), 1) as (one,):
            await leave(one, tmp_path / "left")
        with no_more_files():
            assert LeftState(tmp_path / "left").find(RUN) is None
        assert LeftState(tmp_path / "left").find(RUN) == HELD

    asyncio.run(main())
