"""Moments of 8 bits: the codes, and updates with them beside a plain twin."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarmflow.compute import moments as module
from swarmflow.compute.blocks import BLOCK_ELEMENTS, grid_blocks
from swarmflow.compute.codec import _bitsandbytes
from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.layout import TensorSlot
from swarmflow.compute.moments import CodedMoment, coded, decoded, shares_of
from swarmflow.compute.moments_kernel import moments_kernel
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from tests.compute.eight_bits import SHARES, Twin, stored

SHAPES = ((13, 7), (1,), (40, 30), (256,), (3, 171), (70, 100))
# Where there is a compiler the kernel has to be there: without it these tests fail.
KERNEL = pytest.mark.skipif(
    moments_kernel() is None and shutil.which("cc") is None, reason="there is no C compiler (cc) here: numpy codes"
)
SIGNS = pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
STEPS = 6


@pytest.fixture(params=[pytest.param("kernel", marks=KERNEL), "numpy"], autouse=True)
def kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Codes by the compiled kernel, and by numpy."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(module, "moments_kernel", lambda: None)
        else:
            assert moments_kernel() is not None
        yield


def numbers(elements: int, seed: int, signed: bool, spread: float = 2.0) -> torch.Tensor:
    """Numbers of unlike size."""
    drawn = torch.Generator().manual_seed(seed)
    found = torch.randn(elements, generator=drawn) * 10 ** (spread * torch.randn(elements, generator=drawn))
    return found if signed else found.abs()


@SIGNS
def test_the_shares_are_those_of_bitsandbytes(signed: bool) -> None:
    """Rounded once, and so in the last two digits at most other than its sums in fp32."""
    functional = importlib.import_module("bitsandbytes.functional")
    theirs = functional.create_dynamic_map(signed=signed).numpy()
    assert np.array_equal(shares_of(signed), SHARES[signed])
    assert np.abs(theirs.view(np.int32) - shares_of(signed).view(np.int32)).max() <= 2


@SIGNS
def test_no_code_of_bitsandbytes_is_nearer(signed: bool) -> None:
    """Its kernel for CPUs looks at 15 bits of a share: what it chooses otherwise is farther, by less than 2^-15."""
    values, shares = numbers(1 << 16, 0, signed, 0.5), torch.from_numpy(shares_of(signed))
    theirs, their_scales = _bitsandbytes().quantize_blockwise(values, shares, BLOCK_ELEMENTS)
    codes, scales = coded(values, signed)
    assert torch.equal(scales, their_scales)
    wanted = (values.view(-1, BLOCK_ELEMENTS) / scales.unsqueeze(1)).view(-1).double()
    far = (torch.from_numpy(np.roll(shares, -int(shares.eq(0).nonzero()[0]))).double()[codes.long()] - wanted).abs()
    their_far = (shares.double()[theirs.long()] - wanted).abs()
    assert bool((far <= their_far).all())
    assert bool((their_far - far < 2.0**-15).all())
    assert 0.9 < float((far == their_far).double().mean()) < 1.0


@SIGNS
def test_whatever_lies_beside_a_middle_goes_to_the_nearest_share(signed: bool, device: torch.device) -> None:
    """A CPU looks codes up and a GPU searches for them; a search in double precision shows what is right."""
    shares = torch.from_numpy(SHARES[signed])
    middles = ((shares[1:].double() + shares[:-1].double()) / 2).float()
    near = [middles, shares]
    for towards in (-2.0, 2.0):
        for start in (middles, shares):
            found = start
            for _ in range(3):
                found = torch.nextafter(found, torch.full_like(found, towards))
                near.append(found)
    values = torch.cat([*near, torch.linspace(-1.0 if signed else 0.0, 1.0, 4 * BLOCK_ELEMENTS)]).clamp(
        -1.0 if signed else 0.0, 1.0
    )
    rows = torch.nn.functional.pad(values, (0, -values.numel() % 255)).view(-1, 255)
    rows = torch.cat([rows, torch.ones(len(rows), 1)], dim=1)  # so that the scale of each block is 1
    codes, scales = coded(rows.view(-1).to(device), signed)
    assert bool((scales == 1.0).all())
    wide = shares.double()
    wanted = torch.bucketize(rows.view(-1).double(), (wide[1:] + wide[:-1]) / 2)
    if not signed:
        wanted[(wanted == 0) & (rows.view(-1) > 0)] = 1
    assert torch.equal(decoded(codes, scales, signed).cpu(), shares[wanted])


@pytest.mark.usefixtures("threads")
@given(st.integers(1, 600) | st.integers(1 << 16, 66000), st.integers(0, 99), st.booleans(), st.floats(-44, 30))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_stored_is_what_the_twin_stores(elements: int, seed: int, signed: bool, exponent: float) -> None:
    """Of numbers of any size, those below fp32's normal ones too; by one thread and by several."""
    values = numbers(elements, seed, signed) * 10.0**exponent
    values = torch.where(values.isfinite(), values, 0.0)
    codes, scales = coded(values, signed)
    assert (codes.dtype, codes.numel(), scales.numel()) == (torch.uint8, elements, grid_blocks(elements))
    assert np.array_equal(decoded(codes, scales, signed).numpy(), stored(values.numpy(), signed))


def test_zeros_are_the_code_zero() -> None:
    """So that a state that nobody has written, and what lies between two parameters, is zero."""
    for signed in (True, False):
        codes, scales = coded(torch.zeros(300), signed)
        assert not codes.any()
        assert not scales.any()
        assert torch.equal(decoded(torch.zeros(300, dtype=torch.uint8), torch.ones(2), signed), torch.zeros(300))


def group_of(device: torch.device) -> FlatGroup:
    """A group whose parameters begin at the edges of blocks."""
    entries, offset = [], 0
    for number, shape in enumerate(SHAPES):
        entries.append(TensorSlot(f"p{number}", shape, offset))
        offset = grid_blocks(entries[-1].stop) * BLOCK_ELEMENTS
    group = FlatGroup.empty("own", tuple(entries), device)
    for entry in entries:
        group.view(group.params, entry).copy_(numbers(entry.elements, entry.offset, True, 0.5).view(entry.shape))
    return group


@pytest.mark.parametrize("name", ["adamw", "lamb", "sgd"])
@pytest.mark.parametrize("block", [BLOCK_ELEMENTS, 1 << 18])
def test_an_update_has_the_bits_of_the_twin(
    name: str, block: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmflow.compute.optimizer.BLOCK_ELEMENTS", block)
    chosen = OptimizerSettings(name, weight_decay=0.1, state_bits=8)
    group, optimizer = group_of(device), make_optimizer(chosen)
    group.allocate(optimizer.state_names())
    flat = group.params.cpu().numpy()
    twins = [Twin(chosen, flat[entry.offset : entry.stop]) for entry in group.entries]
    kept = [CodedMoment("momentum", True)]
    if name != "sgd":
        kept = [CodedMoment("exp_avg", True), CodedMoment("exp_avg_sq", False)]
    for version in range(STEPS):
        gradient = torch.zeros_like(group.params)
        for entry in group.entries:
            gradient[entry.offset : entry.stop] = numbers(entry.elements, version + entry.offset, True, 1.0)
        before = gradient.clone()
        ratios = optimizer.apply(group, gradient, 0.3, 1e-2, version)
        assert torch.equal(gradient, before)
        for entry, twin, ratio in zip(group.entries, twins, ratios or [0.0] * len(twins), strict=True):
            where = slice(entry.offset, entry.stop)
            twin.update(gradient[where].cpu().numpy(), 0.3, 1e-2, version, ratio)
            if name == "lamb":
                assert ratio == pytest.approx(twin.ratio, rel=1e-12)
            assert np.array_equal(group.params[where].cpu().numpy(), twin.params)
            for moment, wanted in zip(kept, twin.moments, strict=True):
                assert np.array_equal(moment.read(group.state, where).cpu().numpy(), wanted)
    assert_gaps_are_zero(group)


def test_a_parameter_whose_gradients_end_does_not_leap() -> None:
    """A second moment that vanished before the first would make steps of the first divided by eps."""
    group = FlatGroup.empty("own", (TensorSlot("p", (256,), 0),), torch.device("cpu"))
    optimizer = make_optimizer(OptimizerSettings("adamw", weight_decay=0.0, state_bits=8))
    group.allocate(optimizer.state_names())
    gradient = torch.logspace(-8, 0, 256)  # so that of most the square is far below the largest one's
    for version in range(20):
        before = group.params.clone()
        optimizer.apply(group, gradient if version == 0 else torch.zeros(256), 1.0, 1.0, version)
        assert float((group.params - before).abs().max()) < 2.0


def assert_gaps_are_zero(group: FlatGroup) -> None:
    """What lies between two parameters takes no part."""
    between = torch.ones_like(group.params, dtype=torch.bool)
    for entry in group.entries:
        between[entry.offset : entry.stop] = False
    assert bool(between.any())
    for tensor in group.tensors().values():
        if tensor.numel() == between.numel():
            assert not tensor[between].any()
