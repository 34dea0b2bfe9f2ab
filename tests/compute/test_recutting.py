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
from swarmflow.compute.layout import TIED, StageLayout, stage_layout
from swarmflow.compute.recutting import cut_anew
from swarmflow.compute.state_root import GRID, tensor_name
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
PARTS = ("params", "exp_avg")
cuts = st.sets(st.integers(1, BLOCKS - 1)).map(lambda chosen: tuple(sorted(chosen)))


def layouts(cut: Sequence[int], model: dict[str, object] = TIED_MODEL) -> list[StageLayout]:
    return [stage_layout(model, cut, stage) for stage in range(len(cut) + 1)]


def lengths(layout: StageLayout) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in layout.groups:
        found |= {tensor_name(group, part): layout.elements(group) for part in PARTS}
        found[tensor_name(group, GRID)] = grid_blocks(layout.elements(group))
    return found


def written(folder: Path, cut: Sequence[int], seed: int) -> Checkpoint:
    """A version whose numbers are drawn; a tied weight has the same ones wherever it is."""
    made = Checkpoint.begin(folder, 3, f"cut {cut}", len(cut) + 1)
    tied: dict[str, bytes] = {}
    for layout in layouts(cut):
        writer = made.writer(layout.stage, lengths(layout))
        for name, count in lengths(layout).items():
            drawn = np.random.default_rng([seed, layout.stage, len(name), count])
            numbers = 2.0 ** drawn.integers(-9, 9, count) if name.endswith(GRID) else drawn.normal(size=count)
            data = numbers.astype("<f4").tobytes()
            writer.write(name, 0, tied.setdefault(name, data) if name.startswith(TIED) else data)
        made.add(layout.stage, writer)
    return made


def by_parameter(version: Checkpoint, cut: Sequence[int], part: str) -> dict[str, list[bytes]]:
    """The bytes of a part of the state, or the spacings of its elements, by the parameter's name, wherever it lies."""
    found: dict[str, list[bytes]] = {}
    for layout in layouts(cut):
        with version.state(layout.stage) as state:
            for group, slots in layout.groups.items():
                name = tensor_name(group, part)
                whole = np.frombuffer(state.read(name, 0, state.elements[name]), "<f4")
                each = np.repeat(whole, BLOCK_ELEMENTS) if part == GRID else whole
                for slot in slots:
                    found.setdefault(slot.name, []).append(each[slot.offset : slot.stop].tobytes())
    return found


@settings(max_examples=25, deadline=None)
@given(cuts, cuts, st.integers(0, 99))
def test_nothing_is_lost_whatever_the_cuts(
    tmp_path_factory: pytest.TempPathFactory, before: tuple[int, ...], after: tuple[int, ...], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    source = written(folder / "before", before, seed)
    target = Checkpoint.begin(folder / "after", 3, "after", len(after) + 1)
    of = layouts(after)
    cut_anew(layouts(before), of, lambda stage: lengths(of[stage]), source, target)
    assert target.complete
    for part in PARTS:
        former, now = by_parameter(source, before, part), by_parameter(target, after, part)
        assert former.keys() == now.keys()
        assert all(set(now[name]) == {former[name][0]} for name in former)
    former, now = by_parameter(source, before, GRID), by_parameter(target, after, GRID)
    for name, [spacings, *_] in former.items():
        finest = np.frombuffer(spacings, "<f4")
        assert all((np.frombuffer(each, "<f4") >= finest).all() for each in now[name]), "what fitted fits"
    if before == after:
        assert target.roots == source.roots


def test_another_model_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path / "before", (2,), 0)
    other = layouts((1,), {**TIED_MODEL, "intermediate_size": 24})
    target = Checkpoint.begin(tmp_path / "after", 3, "after", 2)
    with pytest.raises(CheckpointError, match=r"has no parameter \S+ of this shape"):
        cut_anew(layouts((2,)), other, lambda stage: lengths(other[stage]), source, target)
    assert not target.complete
