"""Pieces of a stage that were loaded at different versions follow the updates to the bits of the whole stage."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from swarmflow.compute import update_log
from swarmflow.compute.blocks import BLOCK_ELEMENTS, alignment, grid_blocks
from swarmflow.compute.blockwise_sums import BlockwiseSums
from swarmflow.compute.exact import EXPONENT
from swarmflow.compute.flat import FlatGroup, rounding_of
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.stage_pieces import SpanUpdate
from swarmflow.compute.state_root import Span
from swarmflow.compute.sums import TensorSums
from swarmflow.compute.update_log import IDLE_S, UpdateLog, kept_sums
from swarmflow.compute.weights import init_stage
from swarmflow.errors import FrameError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.served import Served
from tests.further import more_of
from tests.runtime.manifests import SUMS, manifest

STEPS = 9
MODES = [(sums, delay) for sums in SUMS for delay in (0, 1)]


def stage_of(of: Manifest, number: int = 0) -> Served:
    """A stage at version 0."""
    rounding = rounding_of(of.accumulate, of.reduce_codec, of.microbatches)
    stages = [
        build_stage(of.model, of.cut, number, device="cpu", rounding=rounding, align=alignment(of.state_bits))
        for _ in range(1 + of.delay)
    ]
    optimizer = make_optimizer(OptimizerSettings.of(of))
    for group in stages[0].groups.values():
        group.allocate(optimizer.state_names())
    served = Served(tuple(StageRunner(stage, of.precision) for stage in stages), optimizer, 0)
    init_stage(served.runner(1).stage, of.seed)
    served.begin()
    return served


def accumulate(group: FlatGroup, gradient: torch.Tensor, number: int) -> None:
    """Add the gradient of one microbatch to a group's sums."""
    if isinstance(group.sums, BlockwiseSums):
        padded = torch.zeros(grid_blocks(gradient.numel()) * BLOCK_ELEMENTS)
        padded[: gradient.numel()] = gradient
        group.sums.add(padded, 1, number)
    else:
        assert isinstance(group.sums, TensorSums)
        if group.sums.fixed is None:
            group.sums.flat.add_(gradient)
        else:
            group.sums.fixed.move(gradient.clone(), group.sums.flat)


def step(served: Served, number: int, reduced: bool) -> bool:
    """Compute a step with random gradients and apply its update; return whether the state was whole.

    reduced: the sums are those of an all-reduce.
    """
    torch.manual_seed(number)
    served.runner(number).begin(EXPONENT)
    for name, group in served.groups(number).items():
        for index in range(2):
            accumulate(group, torch.randn(group.params.numel()) * 0.01 * (number + 1), 2 * number + index)
        if reduced:
            served.reduced[name] = group.sums.empty()
            served.reduced[name].total(0, group.sums.elements, [group.sums])
    return served.update(number, 0.5, 0.01 * (number + 1))


def bring(giver: Served, loader: Served, span: Span, have: int) -> int:
    """Bring a span from a version to the donor's, as over the network; return how many updates it has followed."""
    updates = giver.log.since(have, giver.version) if have >= 0 else None
    for piece in span.pieces() if updates is None else ():
        loader.pieces.write(piece, giver.version, giver.pieces.read(piece, giver.version))
    for each in updates or ():
        packed = each.sums[span.group].pack(span.start, span.stop)
        ratios = each.ratios[span.group]
        loader.pieces.follow(span, SpanUpdate(each.step, each.scale, each.learning_rate, ratios, bytes(packed)))
    return len(updates or ())


@pytest.mark.parametrize(
    ("optimizer", "reduced"),
    [
        ("adamw", False),
        ("lamb in 8 bits", True),
        *more_of(("adamw", True), ("lamb in 8 bits", False)),
        *more_of(*product(("lamb", "sgd", "adamw in 8 bits", "sgd in 8 bits"), (True, False))),
    ],
)
@pytest.mark.parametrize(("sums", "delay"), MODES)
def test_pieces_of_several_versions_become_the_stage_that_all_others_have(
    sums: str, delay: int, optimizer: str, reduced: bool
) -> None:
    name, _, coded = optimizer.partition(" in ")
    of = manifest(**SUMS[sums], delay=delay, optimizer=name, state_bits=8 if coded else 32)
    giver, loader = stage_of(of), stage_of(of)
    loader.state.zero()
    giver.log.want()
    have = dict.fromkeys(loader.pieces.all(), -1)
    followed = 0
    for number in range(STEPS):
        step(giver, number, reduced)
        for place, span in enumerate(have):
            if number == STEPS - 1 or (place + number) % 3:  # each at versions of its own meanwhile
                followed += bring(giver, loader, span, have[span])
                have[span] = giver.version
    assert followed > len(have), "not all was loaded anew"
    loader.version = giver.version
    assert loader.state.digest() == giver.state.digest()
    step(giver, STEPS, reduced)
    step(loader, STEPS, reduced)
    assert loader.state.digest() == giver.state.digest(), "and goes on alike"


def test_what_does_not_fit_a_piece_is_refused_and_changes_nothing() -> None:
    of = manifest(**SUMS["blockwise16"])
    served = stage_of(of)
    step(served, 0, reduced=True)
    before, [span, *_] = served.state.digest(), served.pieces.all()
    size = served.pieces.state_bytes(span)
    for data in (bytes(size - 4), bytes(size + 4), b"\xff" * size):
        with pytest.raises(FrameError):
            served.pieces.write(span, served.version, data)
    packed = bytes(2 * (span.stop - span.start))
    for update in (SpanUpdate(1, 0.5, 0.1, (), packed[:-2]), SpanUpdate(1, 0.5, 0.1, (1.0,) * 1000, packed)):
        with pytest.raises(FrameError):
            served.pieces.follow(span, update)
    assert served.state.digest() == before
    assert not served.pieces.fits(Span("own", 1, span.stop))
    assert not served.pieces.fits(Span("own", 0, 1 << 40))
    assert not served.pieces.fits(Span("another", 0, span.stop))


def test_updates_are_kept_only_while_somebody_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    served = stage_of(manifest(**SUMS["blockwise16"]))
    served.log = UpdateLog(lambda: now[0])
    monkeypatch.setattr(update_log, "KEPT_BYTES_MIN", 0)  # the stage is a small one
    for number in range(3):
        step(served, number, reduced=True)
    assert served.log.since(2, 3) is None
    served.log.want()
    for number in range(3, 7):
        step(served, number, reduced=True)
    assert served.log.since(3, 7) is None, "so much memory is not for them"
    kept = served.log.since(5, 7)
    assert kept is not None
    assert [update.step for update in kept] == [5, 6]
    now[0] = IDLE_S + 1.0
    step(served, 7, reduced=True)
    assert served.log.since(6, 7) is None


@pytest.mark.parametrize("own", [True, False])
def test_what_is_kept_takes_no_memory_of_a_device_that_may_be_full(own: bool) -> None:
    with FakeTensorMode():  # there may be no such device
        kept = kept_sums(TensorSums(torch.zeros(8, device="cuda")), own)
        assert isinstance(kept, TensorSums)
        assert (kept.flat.device.type, kept.elements) == ("cpu", 8)
