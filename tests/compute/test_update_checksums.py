"""The checksums that are taken during an update are those of the whole tensors, before it and after it."""

from __future__ import annotations

import math

import pytest
import torch

from swarmflow.compute import optimizer as module
from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.flat_tensors import checksum
from swarmflow.compute.layout import TensorSlot
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.update_checksums import UpdateChecksums

BLOCK = 64
OPTIMIZERS = ("adamw", "lamb", "sgd")


def group_of(name: str, elements: int) -> FlatGroup:
    """A group of two tensors, the first of which is of one element, with random parameters."""
    entries = (TensorSlot("first", (1,), 0), TensorSlot("second", (elements - 1,), 1))
    group = FlatGroup.empty(name, entries, torch.device("cpu"))
    group.params.copy_(torch.randn(elements, generator=torch.Generator().manual_seed(elements)))
    return group


def whole(groups: list[FlatGroup]) -> dict[str, int]:
    return {f"{group.name}.{name}": checksum(of) for group in groups for name, of in group.tensors().items()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("elements", [2, 63, 64, 65, 200, 255])
def test_blocks_add_up_to_the_whole(optimizer: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", BLOCK)
    update = make_optimizer(OptimizerSettings(optimizer))
    groups = [group_of("own", elements), group_of("tied", elements + 1)]
    for version in range(2):
        for group in groups:
            group.allocate(update.state_names())
        before = whole(groups)
        sums = UpdateChecksums(groups, ("params", *update.state_names()))
        for group in groups:
            update.apply(group, torch.randn(group.params.numel()), 1.0, 0.1, version, sums.around)
        assert sums.before() == before
        assert sums.after() == whole(groups) != before


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("broken", [0, 70, 199])
def test_an_update_that_fails_halfway_is_completed_to_the_sums_before_it(
    optimizer: str, broken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", BLOCK)
    update = make_optimizer(OptimizerSettings(optimizer))
    groups = [group_of("own", 200), group_of("tied", 99)]
    for group in groups:
        group.allocate(update.state_names())
    before = whole(groups)
    sums = UpdateChecksums(groups, ("params", *update.state_names()))
    gradient = torch.zeros(200)
    gradient[broken] = math.inf
    with pytest.raises(NotFiniteError):
        update.apply(groups[0], gradient, 1.0, 0.1, 0, sums.around)
    sums.complete_before()
    assert sums.before() == before
