"""Blocks that share their weights: which do, on which stages, and what is refused. The families are in `models`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.exact import EXPONENT
from swarmflow.compute.export import export_stagewise
from swarmflow.compute.families import model_config, to_config
from swarmflow.compute.grid import FIRST_EXPONENT
from swarmflow.compute.layout import OWN, stage_layout
from swarmflow.compute.partition import WHOLE_GROUPS_WORTH, BlockCosts, plan_cut
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.sharing import shared_groups, with_sharing
from swarmflow.compute.stage import Stage, build_stage
from swarmflow.compute.weights import load_stage
from swarmflow.compute.weights_folder import weights_problems
from swarmflow.errors import ModelError
from tests.compute.models import GIVEN, batch, config_of, stages_of, whole_model
from tests.compute.test_export import _reader

LLAMA = GIVEN["llama"]


def weights(stages: list[Stage]) -> dict[str, torch.Tensor]:
    return {name: values for stage in stages for name, values, _ in stage.named_parameters()}


# --- groups and cuts --------------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 60))
def test_groups_are_nearly_equal(blocks: int, count: int) -> None:
    config = to_config(with_sharing(LLAMA, count))
    if count > blocks:
        with pytest.raises(ModelError, match=rf"shared_blocks = {count}: the model has {blocks} blocks"):
            shared_groups(config, blocks)
        return
    groups = shared_groups(config, blocks)
    assert [block for group in groups for block in group] == list(range(blocks))
    sizes = [len(group) for group in groups]
    assert sizes == sorted(sizes, reverse=True)
    assert (len(sizes), sizes[0] - sizes[-1] <= 1) == (count, True)


def slowest(cut: tuple[int, ...], blocks: int, costs: BlockCosts) -> float:
    load = [(stop - start) * costs.block_s for start, stop in itertools.pairwise((0, *cut, blocks))]
    load[0] += costs.embedding_s
    load[-1] += costs.head_s
    return max(load)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.floats(0, 3), st.floats(0.1, 3), st.floats(0, 3))
def test_a_planned_cut_separates_no_group_unless_that_is_faster(
    blocks: int, groups: int, stages: int, embedding_s: float, block_s: float, head_s: float
) -> None:
    groups, stages = min(groups, blocks), min(stages, blocks)
    config, costs = {"model_type": "gpt2", "n_layer": blocks}, BlockCosts(embedding_s, block_s, head_s)
    even, cut = plan_cut(config, stages, costs), plan_cut(with_sharing(config, groups), stages, costs)
    edges = {group.start for group in shared_groups(to_config(with_sharing(LLAMA, groups)), blocks)} - {0}
    assert len(cut) == stages - 1
    assert cut == even or edges <= set(cut) or set(cut) <= edges
    assert slowest(cut, blocks, costs) <= WHOLE_GROUPS_WORTH * slowest(even, blocks, costs) * (1 + 1e-9)


def test_a_stage_holds_the_weights_of_a_group_once() -> None:
    config = model_config({**LLAMA, "num_hidden_layers": 6}, 2)
    plain = stage_layout(model_config({**LLAMA, "num_hidden_layers": 6}), (3,), 0)
    own = stage_layout(config, (3,), 0)
    block = stage_layout(config, (1,), 1).elements("shared-0")
    assert plain.parameters - own.parameters == 2 * block
    assert own.stored_parameters == plain.parameters
    cut = (2, 4)
    assert [dict(stage_layout(config, cut, stage).spread) for stage in range(3)] == [
        {"shared-0": (0, 1)},
        {"shared-0": (0, 1), "shared-1": (1, 2)},
        {"shared-1": (1, 2)},
    ]
    assert stage_layout(config, cut, 1).elements(OWN) == 0


# --- gradients --------------------------------------------------------------------------------------------------------


def unshared(stage: Stage, config: dict[str, object], cut: tuple[int, ...], how: dict[str, Any]) -> Stage:
    """The same stage of a model whose blocks have weights of their own, with equal values."""
    apart = stages_of(with_sharing(config, None), cut, **how)[stage.layout.stage]
    own, values = weights([apart]), weights([stage])
    for slot in (slot for slots in stage.layout.groups.values() for slot in slots):
        for name in stage.layout.stored_of(slot):
            own[name].copy_(values[slot.name])
    return apart


def gradients(stage: Stage) -> dict[str, torch.Tensor]:
    return {
        slot.name: group.sums.gradient()[slot.offset : slot.stop]
        for group in stage.groups.values()
        for slot in group.entries
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("reduce_codec", ["none", "blockwise16"])
def test_a_pass_adds_up_the_gradients_of_all_uses(precision: str, reduce_codec: str) -> None:
    """Those of large weights too, which are rounded at once where they have one use; in one pass, or in two parts."""
    config = model_config({**LLAMA, "hidden_size": 160, "num_hidden_layers": 3}, 1)
    how: dict[str, Any] = {"seed": 1, "microbatches": 4, "reduce_codec": reduce_codec}
    whole, parts = (stages_of(config, (1,), **how)[1] for _ in range(2))
    apart = unshared(whole, config, (1,), how)
    x = torch.randn(2, 7, 160, generator=torch.Generator().manual_seed(0))
    for stage in (whole, parts, apart):
        runner = StageRunner(stage, precision)
        runner.begin(EXPONENT)
        runner.loss("m", x, batch(length=7)[1], number=3, defer=stage is parts)
        assert runner.unfinished("m") == (stage is parts)
        if stage is parts:
            runner.finish("m", 3)
    found, again, each = gradients(whole), gradients(parts), gradients(apart)
    atol = 4 * 2.0 ** (FIRST_EXPONENT - EXPONENT) if reduce_codec == "blockwise16" else 1e-6
    for slot in whole.layout.groups["shared-0"]:
        assert torch.equal(found[slot.name], again[slot.name])
        added = torch.stack([each[name] for name in slot.holders]).sum(0)
        torch.testing.assert_close(found[slot.name], added, rtol=1e-5, atol=atol)


def test_the_last_block_that_uses_a_broken_weight_here_is_named() -> None:
    stage = stages_of(model_config({**LLAMA, "num_hidden_layers": 8}, 2), (1, 5))[1]
    assert stage.gradients_broken_in() is None
    for group, block in (("shared-0", 3), ("shared-1", 4)):
        stage.groups[group].grads[-1] = torch.nan
        assert stage.gradients_broken_in() == f"model.layers.{block}"


def test_each_block_of_a_group_drops_what_it_would_alone_and_a_replay_too() -> None:
    given = {**GIVEN["gpt2"], "resid_pdrop": 0.5, "attn_pdrop": 0.1}
    config = model_config(given, 1)
    how: dict[str, Any] = {"dropout": True, "microbatches": 4}
    (stage,) = stages_of(config, (), **how)
    apart = unshared(stage, config, (), how)
    (x, y), draw = batch(), DrawKey(1, 2, 3)
    assert torch.equal(StageRunner(stage).forward("m", x, draw), StageRunner(apart).forward("m", x, draw))
    runner = StageRunner(stage)
    runner.loss("m", x, y, draw)
    assert stage.groups[OWN].summed.any()
    runner.replay(x, -1, targets=y, draw=draw)
    assert not stage.groups[OWN].summed.any()


# --- folders ----------------------------------------------------------------------------------------------------------


def test_an_export_has_a_copy_for_each_block_and_begins_the_next_run(tmp_path: Path) -> None:
    config = config_of("llama-shared")
    stages = stages_of(config, (1, 3), seed=5)
    export_stagewise(config, (1, 3), _reader(stages), tmp_path / "out")
    assert "shared_blocks" not in (tmp_path / "out" / "config.json").read_text()
    assert model_config(tmp_path / "out") == config_of("llama-tied")
    assert model_config(tmp_path / "out", 2) == config
    assert weights_problems(config, tmp_path / "out") == []
    last = build_stage(config, (3,), 1, device="cpu")
    load_stage(last, tmp_path / "out")
    expected = weights(stages)
    assert last.layout.spread == {"tied": (0, 1), "shared-1": (0, 1)}
    assert all(torch.equal(values, expected[name]) for name, values, _ in last.named_parameters())


def test_weights_that_are_not_equal_are_refused(tmp_path: Path) -> None:
    config = config_of("llama-tied")
    whole_model(config, stages_of(config, ())).save_pretrained(tmp_path)
    [line] = weights_problems(config_of("llama-shared"), tmp_path)
    assert "model.layers.1.self_attn.q_proj.weight is not equal to model.layers.0.self_attn.q_proj.weight" in line
    tensors = load_file(tmp_path / "model.safetensors")
    for name in tensors:
        tensors[name] = tensors[name.replace(".1.", ".0.").replace(".3.", ".2.")].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    assert weights_problems(config_of("llama-shared"), tmp_path) == []
    tensors["model.layers.3.mlp.up_proj.weight"][-1, -1] += 1e-6
    save_file(tensors, tmp_path / "model.safetensors")
    [line] = weights_problems(config_of("llama-shared"), tmp_path)
    assert "model.layers.3.mlp.up_proj.weight is not equal" in line


def test_blocks_of_several_kinds_are_refused_by_name() -> None:
    assert model_config(GIVEN["qwen2"], 2)["shared_blocks"] == 2
    with pytest.raises(ModelError, match=r"qwen2 .* blocks 0 and 2 .* layer_types has 'full_attention' and"):
        model_config(GIVEN["qwen2"], 1)
