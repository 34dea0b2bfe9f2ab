"""The checksums that are taken during an update are those of the whole tensors, before it and after it."""

from __future__ import annotations

import math

import pytest
import torch

from swarmflow.compute import blocks as grid
from swarmflow.compute import optimizer as module
from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.layout import TensorSlot
from swarmflow.compute.optimizer import BLOCK_ELEMENTS, Optimizer, OptimizerSettings, make_optimizer
from swarmflow.compute.stage_state import StageState
from swarmflow.compute.state_root import PIECE_ELEMENTS
from swarmflow.compute.update_checksums import UpdateChecksums

PIECES = (PIECE_ELEMENTS, PIECE_ELEMENTS + 1)
BLOCKS = (BLOCK_ELEMENTS, BLOCK_ELEMENTS + 3, 2 * BLOCK_ELEMENTS + PIECE_ELEMENTS)
OPTIMIZERS = ("adamw", "adamw by torch", "lamb", "sgd", "adamw in 8 bits", "lamb in 8 bits", "sgd in 8 bits")


@pytest.fixture(params=OPTIMIZERS)
def update(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Optimizer:
    """An optimizer; AdamW by its kernel, and without."""
    name, *how = request.param.split()
    if how == ["by", "torch"]:
        monkeypatch.setattr(module, "adamw_kernel", lambda: None)
    return make_optimizer(OptimizerSettings(name, state_bits=8 if how[:1] == ["in"] else 32))


def group_of(name: str, elements: int, device: torch.device) -> FlatGroup:
    """A group of one tensor, or of two whose first is of one element, with random parameters."""
    entries: tuple[TensorSlot, ...] = (TensorSlot("only", (elements,), 0),)
    if elements > grid.BLOCK_ELEMENTS:
        second = TensorSlot("second", (elements - grid.BLOCK_ELEMENTS,), grid.BLOCK_ELEMENTS)
        entries = (TensorSlot("first", (1,), 0), second)
    group = FlatGroup.empty(name, entries, device)
    group.params.copy_(torch.randn(elements, generator=torch.Generator().manual_seed(elements)))
    return group


def whole(groups: list[FlatGroup]) -> dict[str, list[int]]:
    return as_lists(StageState({group.name: group for group in groups}).piece_sums())


def as_lists(sums: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: each.tolist() for name, each in sums.items()}


@pytest.mark.parametrize("elements", [2, 63, *PIECES, *BLOCKS])
def test_the_pieces_of_all_blocks_are_those_of_the_whole(
    update: Optimizer, elements: int, device: torch.device
) -> None:
    groups = [group_of("own", elements, device), group_of("tied", elements + 1, device)]
    for version in range(2):
        for group in groups:
            group.allocate(update.state_names())
        before = whole(groups)
        sums = UpdateChecksums(groups, ("params", *update.state_names()))
        for group in groups:
            update.apply(group, torch.randn(group.params.numel(), device=device), 1.0, 0.1, version, sums)
        assert as_lists(sums.before) == before
        assert as_lists(sums.after) == whole(groups) != before


@pytest.mark.parametrize("broken", [0, BLOCK_ELEMENTS + 5, 2 * BLOCK_ELEMENTS])
def test_an_update_that_fails_halfway_is_completed_to_the_sums_before_it(
    update: Optimizer, broken: int, device: torch.device
) -> None:
    groups = [group_of("own", 2 * BLOCK_ELEMENTS + 1, device), group_of("tied", 99, device)]
    for group in groups:
        group.allocate(update.state_names())
    before = whole(groups)
    sums = UpdateChecksums(groups, ("params", *update.state_names()))
    gradient = torch.zeros(groups[0].params.numel(), device=device)
    gradient[broken] = math.inf
    with pytest.raises(NotFiniteError):
        update.apply(groups[0], gradient, 1.0, 0.1, 0, sums)
    sums.complete_before()
    assert as_lists(sums.before) == before
