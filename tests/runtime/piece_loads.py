"""A load of a stage from donors in this process, for tests of what it brings."""

from __future__ import annotations

from collections.abc import Callable

from swarmflow.compute.families import model_config
from swarmflow.core.protocol.types import Member
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.piece_loading import PieceLoad
from swarmflow.runtime.execution.served import Served
from tests.compute.models import GIVEN
from tests.runtime.manifests import SUMS, manifest
from tests.runtime.test_copy_keeper import Process
from tests.runtime.test_followed_pieces import stage_of, step

WIDE = model_config({**GIVEN["gpt2"], "n_embd": 96})  # two layers: 14 pieces
FIRST_VERSION = 2
LOADED_S = 30.0


def never() -> None:
    raise AssertionError("nothing is damaged")


def ignored(updates: bool) -> None:
    """For a donor that has nothing else to send."""


def of(**changes: object) -> Manifest:
    return manifest(**SUMS["blockwise16"], model=WIDE, hidden_size=96, **changes)


def donors_of(run: Manifest, count: int) -> list[Served]:
    """Donors at the same version, after the steps that are not followed."""
    made = [stage_of(run) for _ in range(count)]
    for served in made:
        for number in range(FIRST_VERSION):
            step(served, number, reduced=True)
    return made


def load_of(process: Process, loader: Served, received: Callable[[int], None] = lambda total: None) -> PieceLoad:
    async def compute(work: Callable[[], None]) -> None:
        work()

    loader.state.zero()
    reported: Callable[..., None] = lambda donors, arrived, total: received(arrived)  # noqa: E731
    return PieceLoad(process.session.requests, 0, loader.pieces, compute, reported)


def members(*donors: Process) -> list[Member]:
    return [Member(donor.session.me, 0) for donor in donors]


def here(served: Served) -> Callable[[int], Served]:
    return lambda stage: served
