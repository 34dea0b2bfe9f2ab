"""A version that is cut anew: every parameter and what the optimizer keeps for it, to the bits; grids no finer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.compute.blocks import BLOCK_ELEMENTS, grid_blocks
from swarmflow.compute.checkpoint import Checkpoint
from swarmflow.compute.layout import OWN, StageLayout, stage_layout
from swarmflow.compute.recutting import cut_anew
from swarmflow.compute.sharing import with_sharing
from swarmflow.compute.state_root import CODES, GRID, by_blocks, tensor_elements, tensor_name
from swarmflow.errors import CheckpointError

BLOCKS = 4
TIED_MODEL = {
    "model_type": "llama",
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "tie_word_embeddings": True,
}
# The parts of a state that are copied, and of what every parameter's first element is a multiple.
FULL = (("params", "exp_avg"), 1)
CODED = (("params", "exp_avg_codes", "exp_avg_scales"), BLOCK_ELEMENTS)
Form = tuple[tuple[str, ...], int]
cuts = st.sets(st.integers(1, BLOCKS - 1)).map(lambda chosen: tuple(sorted(chosen)))


def sharing(groups: int | None) -> dict[str, object]:
    """The same model with so many groups of blocks that share their weights."""
    return with_sharing(TIED_MODEL, groups)


def layouts(cut: Sequence[int], model: dict[str, object] = TIED_MODEL, form: Form = FULL) -> list[StageLayout]:
    return [stage_layout(model, cut, stage, form[1]) for stage in range(len(cut) + 1)]


def lengths(layout: StageLayout, form: Form = FULL) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in layout.groups:
        found |= {tensor_name(group, part): tensor_elements(part, layout.elements(group)) for part in form[0]}
        found[tensor_name(group, GRID)] = grid_blocks(layout.elements(group))
    return found


def written(folder: Path, cut: Sequence[int], seed: int, form: Form = FULL, groups: int | None = None) -> Checkpoint:
    """A version whose numbers are drawn; what several stages have has the same ones wherever it is."""
    made = Checkpoint.begin(folder, 3, f"cut {cut}", len(cut) + 1)
    tied: dict[str, bytes] = {}
    for layout in layouts(cut, sharing(groups), form):
        writer = made.writer(layout.stage, lengths(layout, form))
        for name, count in lengths(layout, form).items():
            drawn = np.random.default_rng([seed, layout.stage, len(name), count])
            numbers = 2.0 ** drawn.integers(-9, 9, count) if name.endswith(GRID) else drawn.normal(size=count)
            if name.endswith(CODES):
                numbers = np.floor(drawn.uniform(0, 256, count))
            group, _, part = name.partition(".")
            if not by_blocks(part):
                numbers = np.where(within(layout, group), numbers, 0)
            data = numbers.astype(dtype_of(name)).tobytes()
            writer.write(name, 0, data if group == OWN else tied.setdefault(name, data))
        made.add(layout.stage, writer)
    return made


def dtype_of(name: str) -> str:
    return "u1" if name.endswith(CODES) else "<f4"


def within(layout: StageLayout, group: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """1 for elements of parameters, 0 for those between them."""
    found = np.zeros(layout.elements(group), dtype=np.int64)
    for slot in layout.groups[group]:
        found[slot.offset : slot.stop] = 1
    return found


def by_parameter(
    version: Checkpoint, cut: Sequence[int], part: str, form: Form, groups: int | None
) -> dict[str, list[bytes]]:
    """The bytes of a part of the state (a number of a block for each element) by the parameter, wherever it lies."""
    found: dict[str, list[bytes]] = {}
    for layout in layouts(cut, sharing(groups), form):
        with version.state(layout.stage) as state:
            for group, slots in layout.groups.items():
                name = tensor_name(group, part)
                whole = np.frombuffer(state.read(name, 0, state.elements[name]), dtype_of(name))
                each = np.repeat(whole, BLOCK_ELEMENTS) if by_blocks(part) else whole
                if not by_blocks(part):
                    assert not (each * (1 - within(layout, group))).any(), "between parameters all is zero"
                for slot in slots:
                    found.setdefault(slot.name, []).append(each[slot.offset : slot.stop].tobytes())
    return found


@settings(max_examples=25, deadline=None)
@given(cuts, cuts, st.integers(0, 99), st.sampled_from([FULL, CODED]), st.sampled_from((None, None, 1, 2, 3)))
def test_nothing_is_lost_whatever_the_cuts(
    tmp_path_factory: pytest.TempPathFactory,
    before: tuple[int, ...],
    after: tuple[int, ...],
    seed: int,
    form: Form,
    groups: int | None,
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    source = written(folder / "before", before, seed, form, groups)
    target = Checkpoint.begin(folder / "after", 3, "after", len(after) + 1)
    of = layouts(after, sharing(groups), form)
    cut_anew(layouts(before, sharing(groups), form), of, lambda stage: lengths(of[stage], form), source, target)
    assert target.complete
    for part in form[0]:
        former, now = (by_parameter(*which, part, form, groups) for which in ((source, before), (target, after)))
        assert former.keys() == now.keys()
        assert all(set(now[name]) == {former[name][0]} for name in former)
    former, now = (by_parameter(*which, GRID, form, groups) for which in ((source, before), (target, after)))
    for name, [spacings, *_] in former.items():
        finest = np.frombuffer(spacings, "<f4")
        assert all((np.frombuffer(each, "<f4") >= finest).all() for each in now[name]), "what fitted fits"
        assert form == FULL or set(now[name]) == {spacings}, "blocks are whole"
    if before == after:
        assert target.roots == source.roots


def test_another_model_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path / "before", (2,), 0)
    other = layouts((1,), {**TIED_MODEL, "intermediate_size": 24})
    target = Checkpoint.begin(tmp_path / "after", 3, "after", 2)
    with pytest.raises(CheckpointError, match=r"has no parameter \S+ of this shape"):
        cut_anew(layouts((2,)), other, lambda stage: lengths(other[stage]), source, target)
    assert not target.complete
