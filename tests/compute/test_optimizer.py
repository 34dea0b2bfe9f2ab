"""The optimizers against torch's own and, for LAMB, against the paper's formula."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.compute import optimizer as module
from swarmflow.compute.adamw_kernel import adamw_kernel
from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.flat_tensors import digest, sum_of_squares
from swarmflow.compute.layout import TensorSlot
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.state_root import PIECE_ELEMENTS
from swarmflow.errors import ConfigError

SHAPES = ((13, 7), (11,), (40, 30))
STEPS = 20
CPU = torch.device("cpu")
# Where there is a compiler the kernel has to be there: without it these tests fail.
KERNEL = pytest.mark.skipif(
    adamw_kernel() is None and shutil.which("cc") is None, reason="there is no C compiler (cc) here: torch updates"
)


@pytest.fixture(params=[pytest.param("kernel", marks=KERNEL), "torch"])
def adamw(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW by the compiled kernel, and by the operations of torch."""
    if request.param == "torch":
        monkeypatch.setattr(module, "adamw_kernel", lambda: None)
    else:
        assert adamw_kernel() is not None


def _group(device: torch.device = CPU) -> FlatGroup:
    entries, offset = [], 0
    for i, shape in enumerate(SHAPES):
        entries.append(TensorSlot(f"p{i}", shape, offset))
        offset = entries[-1].stop
    group = FlatGroup.empty("own", tuple(entries), device)
    group.params.copy_(torch.randn(offset, generator=torch.Generator().manual_seed(0)))
    return group


def _gradients(group: FlatGroup) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(group.params.numel(), generator=generator) * 10 for _ in range(STEPS)]


def _run(settings: OptimizerSettings, lr: float, scale: float) -> FlatGroup:
    group, optimizer = _group(), make_optimizer(settings)
    group.allocate(optimizer.state_names())
    for version, grads in enumerate(_gradients(group)):
        before = grads.clone()
        optimizer.apply(group, grads, scale, lr, version)
        assert torch.equal(grads, before)
    return group


def _torch_run(make: Callable[..., torch.optim.Optimizer], scale: float, **options: object) -> list[torch.Tensor]:
    group = _group()
    parameters = [torch.nn.Parameter(group.view(group.params, entry).clone()) for entry in group.entries]
    optimizer = make(parameters, foreach=False, **options)
    for grads in _gradients(group):
        for parameter, entry in zip(parameters, group.entries, strict=True):
            parameter.grad = group.view(grads, entry) * scale
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def _assert_equal(group: FlatGroup, expected: list[torch.Tensor]) -> None:
    for entry, values in zip(group.entries, expected, strict=True):
        torch.testing.assert_close(group.view(group.params, entry), values, rtol=1e-6, atol=1e-6)


@KERNEL
def test_an_installation_with_a_compiler_has_the_kernel() -> None:
    assert adamw_kernel() is not None


@pytest.mark.usefixtures("adamw")
@pytest.mark.parametrize("block", [100, 1 << 18])
def test_adamw_is_torchs(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", block)
    group = _run(OptimizerSettings("adamw", betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), lr=1e-2, scale=0.1)
    expected = _torch_run(torch.optim.AdamW, 0.1, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    _assert_equal(group, expected)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_torchs(momentum: float) -> None:
    group = _run(OptimizerSettings("sgd", momentum=momentum, weight_decay=0.01), lr=1e-2, scale=0.1)
    assert len(group.state) == (1 if momentum else 0)
    _assert_equal(group, _torch_run(torch.optim.SGD, 0.1, lr=1e-2, momentum=momentum, weight_decay=0.01))


@pytest.mark.parametrize("block", [100, 1 << 18])
def test_lamb_is_the_papers(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", block)
    lr, scale, decay, (b1, b2) = 1e-2, 0.1, 0.1, (0.9, 0.999)
    group = _run(OptimizerSettings("lamb", betas=(b1, b2), eps=1e-6, weight_decay=decay), lr, scale)
    start = _group()
    expected = []
    for entry in start.entries:
        w = start.view(start.params, entry).double()
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        for t, grads in enumerate(_gradients(start), start=1):
            g = start.view(grads, entry).double() * scale
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            r = m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + 1e-6)
            update = r + decay * w
            w = w - lr * w.norm() / update.norm() * update
        expected.append(w.float())
    _assert_equal(group, expected)


def test_lamb_leaves_zero_weights_a_way_to_move() -> None:
    group = FlatGroup.empty("own", (TensorSlot("p", (4,), 0),), CPU)
    optimizer = make_optimizer(OptimizerSettings("lamb"))
    group.allocate(optimizer.state_names())
    optimizer.apply(group, torch.ones(4), 1.0, 0.5, 0)
    torch.testing.assert_close(group.params, torch.full((4,), -0.5))


@pytest.mark.usefixtures("adamw")
def test_every_operation_of_adamw_rounds_as_ieee_754_says(device: torch.device) -> None:
    """So that a GPU, an Intel and an AMD processor end with the same bits: numpy rounds each operation correctly."""
    chosen, group, one = OptimizerSettings("adamw", betas=(0.9, 0.95), weight_decay=0.1), _group(device), np.float32
    group.allocate(("exp_avg", "exp_avg_sq"))
    p = group.params.cpu().numpy().copy()
    m, v = np.zeros_like(p), np.zeros_like(p)
    for version, grads in enumerate(_gradients(group)):
        make_optimizer(chosen).apply(group, grads.to(device), 1e-3, 3e-4, version)
        g = grads.numpy() * one(1e-3)
        m = m * one(0.9) + g * one(1.0 - 0.9)
        v = v * one(0.95) + g * g * one(1.0 - 0.95)
        below = np.sqrt(v) * one(1.0 / math.sqrt(1.0 - 0.95 ** (version + 1))) + one(1e-8)
        step = m / below * one(1.0 / (1.0 - 0.9 ** (version + 1))) * one(3e-4)
        p = p * one(1.0 - 3e-4 * 0.1) - step
        assert np.array_equal(group.params.cpu().numpy(), p)


@KERNEL
@given(
    st.integers(1, 3 * PIECE_ELEMENTS),
    st.integers(0, 1 << 30),
    st.integers(0, 1000),
    st.floats(-40, 30),
    st.sampled_from([1, 3]),
)
@settings(max_examples=40)
def test_the_kernel_gives_the_bits_of_torch(
    elements: int, seed: int, version: int, exponent: float, threads: int
) -> None:
    """Of values of any size, those below fp32's normal numbers too; by one thread and by several."""
    assert adamw_kernel() is not None, "torch would be compared with itself"
    generator, found, before = torch.Generator().manual_seed(seed), [], torch.get_num_threads()
    start = [torch.randn(elements, generator=generator) * 10.0**exponent for _ in range(4)]
    start[2].square_()
    for use in (adamw_kernel(), None):
        group = FlatGroup.empty("own", (TensorSlot("p", (elements,), 0),), CPU)
        group.params.copy_(start[0])
        group.state = {"exp_avg": start[1].clone(), "exp_avg_sq": start[2].clone()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "adamw_kernel", lambda use=use: use)
            try:
                torch.set_num_threads(threads)
                make_optimizer(OptimizerSettings("adamw")).apply(group, start[3], 1e-3, 3e-4, version)
                found.append([tensor.view(torch.int32).tolist() for tensor in group.tensors().values()])
            except NotFiniteError:
                found.append([])
            finally:
                torch.set_num_threads(before)
    assert found[0] == found[1]


def test_unknown_optimizer_is_named() -> None:
    with pytest.raises(ConfigError, match=r"adan.*adamw, lamb, sgd"):
        make_optimizer(OptimizerSettings("adan"))


def test_sum_of_squares_is_exact_enough_and_adds_up_by_blocks() -> None:
    flat = torch.randn(3 * 65536 + 17, generator=torch.Generator().manual_seed(3)) * 1e3
    assert sum_of_squares(flat) == pytest.approx(float(flat.double().square().sum()), rel=1e-12)
    parts = 0.0
    for start in range(0, flat.numel(), 65536):
        parts += sum_of_squares(flat[start : start + 65536])
    assert parts == sum_of_squares(flat)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert sum_of_squares(flat) == parts
    finally:
        torch.set_num_threads(threads)
    assert sum_of_squares(torch.empty(0)) == 0.0


def test_digest_sees_every_bit() -> None:
    flat = torch.randn(1000)
    other = flat.clone()
    assert digest(flat) == digest(other) == digest([flat[:300], flat[300:]])
    other.view(torch.int32)[999] ^= 1
    assert digest(other) != digest(flat)
