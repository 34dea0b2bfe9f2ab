"""Gradients as integers: no order of additions, no split over members and no subtraction shows in a single bit."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.exact import BLOCK_ELEMENTS, EXPONENT, ExponentOverflowError, FixedPoint
from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.flat_tensors import block_squares, sum_of_squares
from swarmflow.compute.layout import TIED
from swarmflow.compute.runner import StageRunner
from swarmflow.core.protocol.actions import Reset
from tests.compute.models import batch, config_of, stages_of
from tests.further import more

MICROBATCHES = 4


def integers(fixed: FixedPoint, gradients: list[Tensor], elements: int) -> Tensor:
    """The total that these gradients [elements] give, added one after another."""
    total = torch.zeros(elements, dtype=torch.int64)
    for gradient in gradients:
        add(fixed, gradient, total)
    return total


def add(fixed: FixedPoint, gradient: Tensor, total: Tensor, weight: int = 1) -> None:
    """Checks the gradient and adds it; the gradient itself stays."""
    fixed.check([gradient])
    moved = gradient.clone()
    fixed.move(moved, total, weight)
    assert not bool(moved.any())


# --- the arithmetic ---------------------------------------------------------------------------------------------------


ROW = st.lists(st.floats(-1e4, 1e4, width=32), min_size=3, max_size=3)


@settings(max_examples=100)
@given(st.lists(ROW, min_size=1, max_size=8), st.data())
def test_no_order_and_no_split_over_members_shows(rows: list[list[float]], data: st.DataObject) -> None:
    """The sum is always the one of Python's own integers."""
    fixed = FixedPoint(len(rows))
    gradients = [torch.tensor(row, dtype=torch.float32) for row in rows]
    wanted = [sum(int(Fraction(row[column]) * 2**EXPONENT) for row in rows) for column in range(3)]
    shuffled, at = data.draw(st.permutations(gradients)), data.draw(st.integers(0, len(rows)))
    members = [integers(fixed, part, 3) for part in (shuffled[:at], shuffled[at:])]
    assert integers(fixed, gradients, 3).tolist() == wanted
    assert (members[0] + members[1]).tolist() == wanted


def test_blocks_and_threads_make_no_difference(threads: int) -> None:
    elements = 2 * BLOCK_ELEMENTS * threads + 7
    gradient = torch.randn(elements, generator=torch.Generator().manual_seed(0))
    fixed = FixedPoint(MICROBATCHES)
    total = integers(fixed, [gradient, gradient], elements)
    assert torch.equal(total, 2 * (gradient.double() * 2.0**EXPONENT).long())
    add(fixed, gradient, total, -1)
    add(fixed, gradient, total, -1)
    assert not bool(total.any())


def test_what_is_taken_away_is_cut_as_what_was_added(threads: int) -> None:
    """Rounding down, or adding the negated gradient rounded down, would leave a unit behind."""
    fixed = FixedPoint(MICROBATCHES, exponent=1)
    gradient = torch.tensor([0.7, -0.7, 0.3, -0.3, 1.5, -1.5])
    total = integers(fixed, [gradient], 6)
    assert total.tolist() == [1, -1, 0, 0, 3, -3]
    add(fixed, gradient, total, -1)
    assert not bool(total.any())


@pytest.mark.parametrize("exponent", [60, *more(36, 20), 4, *more(-12), -60])
@pytest.mark.parametrize("microbatches", [1, *more(7), 1024])
def test_the_largest_addends_fit_however_many_are_added(threads: int, microbatches: int, exponent: int) -> None:
    """Twice as many as microbatches: a tied weight has two addends of each."""
    fixed = FixedPoint(microbatches, exponent)
    edge = torch.tensor(fixed.limit).nextafter(torch.tensor(0.0))
    for largest in (edge, -edge):
        total = integers(fixed, [largest.reshape(1)] * (2 * microbatches), 1)
        assert int(total) == 2 * microbatches * int(Fraction(float(largest)) * Fraction(2) ** exponent)
        assert abs(int(total)) < 2**62


@pytest.mark.parametrize(
    ("value", "finite"), [(1.0, True), (-1.0, True), (math.inf, False), (-math.inf, False), (math.nan, False)]
)
@pytest.mark.parametrize("at", [0, BLOCK_ELEMENTS, 2 * BLOCK_ELEMENTS + 4])
def test_each_addend_is_judged_by_itself(threads: int, value: float, finite: bool, at: int) -> None:
    """In whatever block it is and whatever lies beside it."""
    fixed = FixedPoint(MICROBATCHES)
    gradient = torch.full((2 * BLOCK_ELEMENTS + 5,), -0.5 * fixed.limit)
    fixed.check([gradient])
    gradient[at] = value * fixed.limit if finite else value
    with pytest.raises(ExponentOverflowError) as caught:
        fixed.check([torch.zeros(3), gradient, torch.zeros(0)])
    assert caught.value.finite is finite
    fixed.exponent -= 16
    if finite:
        total = integers(fixed, [gradient], len(gradient))
        assert int(total[at]) == int(value) * 2 ** (61 - 16) // MICROBATCHES


def test_where_one_is_too_large_and_another_not_finite_the_second_counts() -> None:
    """It would be in vain to try again with another exponent."""
    with pytest.raises(ExponentOverflowError) as caught:
        FixedPoint(MICROBATCHES).check([torch.full((3,), 1e30), torch.tensor([0.0, math.nan])])
    assert not caught.value.finite


def test_totals_read_as_gradients() -> None:
    fixed = FixedPoint(MICROBATCHES)
    gradient = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    total = integers(fixed, [gradient], len(gradient))
    assert fixed.floats(total)[100:200].dtype == torch.float32
    torch.testing.assert_close(fixed.floats(total)[:], gradient, rtol=1e-6, atol=2.0**-EXPONENT)
    assert torch.equal(fixed.floats(total)[100:200], fixed.floats(total)[:][100:200])
    squares = block_squares(total, 0, len(total), fixed.unit)
    assert sum(squares) == pytest.approx(sum_of_squares(gradient), rel=1e-9)


def test_steps_begin_with_the_exponent_that_stages_are_made_with() -> None:
    assert Reset().exponent == FixedPoint(1).exponent == EXPONENT


def test_only_1_and_minus_1_are_weights() -> None:
    with pytest.raises(ValueError, match="weight 2"):
        FixedPoint(1).move(torch.zeros(1), torch.zeros(1, dtype=torch.int64), 2)


# --- stages -----------------------------------------------------------------------------------------------------------


@dataclass
class Pipeline:
    """The stages of one model, each with a runner."""

    runners: list[StageRunner]

    @classmethod
    def of(
        cls, family: str, cut: tuple[int, ...], *, dropout: bool = False, precision: str = "fp32", exact: bool = True
    ) -> Pipeline:
        microbatches = MICROBATCHES if exact else None
        stages = stages_of(config_of(family) | _DROPOUT, cut, dropout=dropout, microbatches=microbatches)
        return cls([StageRunner(stage, precision) for stage in stages])

    def train(self, index: int) -> list[Hop]:
        """One microbatch through all stages: what each of them was given."""
        x, y = batch(seed=index)
        draw = DrawKey(seed=1, step=2, microbatch=index)
        inputs = [x]
        for runner in self.runners[:-1]:
            inputs.append(runner.forward(index, inputs[-1], draw))
        _, _, grad = self.runners[-1].loss(index, inputs[-1], y, draw)
        hops = [Hop(inputs[-1], None, y, draw)]
        for runner, entered in zip(reversed(self.runners[:-1]), reversed(inputs[:-1]), strict=True):
            assert grad is not None
            hops.insert(0, Hop(entered, grad, None, draw))
            grad = runner.backward(index, grad)
        return hops

    def replay(self, hops: list[Hop], weight: int) -> None:
        for runner, hop in zip(self.runners, hops, strict=True):
            runner.replay(hop.x, weight, grad=hop.grad, targets=hop.targets, draw=hop.draw)
            assert runner.held == 0

    def sums(self) -> list[Tensor]:
        return [group.summed.clone() for runner in self.runners for group in runner.stage.groups.values()]

    def gradients(self) -> list[Tensor]:
        groups = [group for runner in self.runners for group in runner.stage.groups.values()]
        return [group.sums.gradient()[0 : group.params.numel()].clone() for group in groups]


@dataclass
class Hop:
    x: Tensor
    grad: Tensor | None
    targets: Tensor | None
    draw: DrawKey


_DROPOUT = {"attn_pdrop": 0.2, "embd_pdrop": 0.2, "resid_pdrop": 0.2, "attention_dropout": 0.2, "hidden_dropout": 0.2}
VARIANTS: list[tuple[str, tuple[int, ...], bool, str]] = [
    ("gpt2", (2,), False, "fp32"),
    ("gpt2", (), False, "fp32"),
    ("gpt2", (1, 3), True, "fp32"),
    ("llama", (2,), False, "bf16"),
    ("llama-tied", (2,), False, "fp32"),
    ("gpt_neox", (2,), True, "fp32"),
]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


@pytest.mark.parametrize(("family", "cut", "dropout", "precision"), VARIANTS)
def test_no_order_of_microbatches_shows(family: str, cut: tuple[int, ...], dropout: bool, precision: str) -> None:
    found: list[list[Tensor]] = []
    for order in itertools.permutations(range(3)):
        pipeline = Pipeline.of(family, cut, dropout=dropout, precision=precision)
        for index in order:
            pipeline.train(index)
        found.append(pipeline.sums())
    assert all(equal(other, found[0]) for other in found[1:])


@pytest.mark.parametrize(("family", "cut", "dropout", "precision"), VARIANTS)
def test_a_microbatch_that_is_taken_away_leaves_no_trace(
    family: str, cut: tuple[int, ...], dropout: bool, precision: str
) -> None:
    pipeline = Pipeline.of(family, cut, dropout=dropout, precision=precision)
    pipeline.train(0)
    wanted = pipeline.sums()
    orphan = pipeline.train(1)
    both = pipeline.sums()
    assert not equal(both, wanted)
    pipeline.replay(orphan, -1)
    assert equal(pipeline.sums(), wanted)
    pipeline.replay(orphan, 1)
    assert equal(pipeline.sums(), both)


def test_in_fp32_what_is_taken_away_leaves_a_rounding_error_at_most() -> None:
    pipeline = Pipeline.of("gpt2", (2,), exact=False)
    orphan = pipeline.train(1)
    pipeline.replay(orphan, -1)
    assert not any(bool(rest.any()) for rest in pipeline.sums()), "of one microbatch alone nothing remains at all"
    pipeline.train(0)
    wanted = pipeline.sums()
    orphan = pipeline.train(1)
    pipeline.replay(orphan, -1)
    for found, before in zip(pipeline.sums(), wanted, strict=True):
        torch.testing.assert_close(found, before, rtol=1e-5, atol=1e-5 * float(before.abs().max()))


@pytest.mark.parametrize(("family", "cut", "dropout", "precision"), VARIANTS)
def test_integers_stand_for_the_gradient_of_fp32(
    family: str, cut: tuple[int, ...], dropout: bool, precision: str
) -> None:
    gradients: list[list[Tensor]] = []
    for exact in (True, False):
        pipeline = Pipeline.of(family, cut, dropout=dropout, precision=precision, exact=exact)
        for index in range(MICROBATCHES):
            pipeline.train(index)
        gradients.append(pipeline.gradients())
    for found, wanted in zip(gradients[0], gradients[1], strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))


def test_a_tied_weight_adds_up_over_both_ends() -> None:
    alone, split = Pipeline.of("gpt2", ()), Pipeline.of("gpt2", (2,))
    for index in range(MICROBATCHES):
        alone.train(index)
        split.train(index)
    first, last = (runner.stage.groups[TIED] for runner in split.runners)
    whole = alone.runners[0].stage
    assert TIED not in whole.groups
    own = whole.groups["own"]
    wanted = next(own.view(own.summed, entry) for entry in own.entries if entry.name == first.entries[0].name)
    total = (first.summed + last.summed).view(wanted.shape)
    torch.testing.assert_close(total.double(), wanted.double(), rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))


def test_a_head_in_pieces_is_one_addend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces add up in fp32 first: else the limit of an addend would depend on how many there are."""
    found = []
    for logits in (1 << 24, 61 * 5):
        monkeypatch.setattr("swarmflow.compute.stage.HEAD_TOKENS_MIN", 1)
        monkeypatch.setattr("swarmflow.compute.stage.LOGITS_ELEMENTS_MAX", logits)
        pipeline = Pipeline.of("gpt_neox", ())
        pipeline.train(0)
        found.append(pipeline.gradients())
    for once, pieces in zip(*found, strict=True):
        torch.testing.assert_close(once, pieces, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", ["loss", "backward", "replay"])
def test_of_a_microbatch_that_does_not_fit_nothing_is_added(way: str) -> None:
    pipeline = Pipeline.of("gpt2", (2,))
    hops = pipeline.train(0)
    before = pipeline.sums()
    first, last = pipeline.runners
    gradient, targets, draw = hops[0].grad, hops[1].targets, hops[0].draw
    assert gradient is not None
    assert targets is not None

    def attempt() -> None:
        match way:
            case "loss":
                last.loss("m", hops[1].x, targets, draw)
            case "backward":
                first.forward("m", hops[0].x, draw)
                first.backward("m", gradient * 1e6)
            case "replay":
                first.replay(hops[0].x, -1, grad=gradient * math.nan, draw=draw)

    for runner in pipeline.runners:
        assert runner.stage.rounding is not None
        runner.stage.rounding.exponent = 60
    with pytest.raises(NotFiniteError if way == "replay" else ExponentOverflowError):
        attempt()
    assert equal(pipeline.sums(), before)
    for runner in pipeline.runners:
        assert runner.stage.rounding is not None
        runner.stage.rounding.exponent = EXPONENT
    pipeline.replay(hops, -1)
    assert not any(bool(rest.any()) for rest in pipeline.sums())


def test_what_a_stage_takes_counts_the_integers() -> None:
    fixed_bytes = []
    for exact in (False, True):
        runner = Pipeline.of("llama", (2,), exact=exact).runners[0]
        fixed_bytes.append(sum(group.nbytes for group in runner.stage.groups.values()))
    assert fixed_bytes[1] - fixed_bytes[0] == 8 * runner.stage.layout.parameters


def test_a_new_step_begins_with_nothing_and_its_exponent() -> None:
    pipeline = Pipeline.of("llama", (2,))
    pipeline.train(0)
    for runner in pipeline.runners:
        runner.begin(20)
        assert runner.stage.rounding is not None
        assert runner.stage.rounding.exponent == 20
    assert not any(bool(total.any()) for total in pipeline.sums())
