"""transformers' implementation of attention: the family's own, or the one that a run asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from swarmflow.compute.demands import measure_activations
from swarmflow.compute.export import ReadParameters, export_stagewise
from swarmflow.compute.families import model_config, shrink
from swarmflow.compute.flat_tensors import memory_of
from swarmflow.compute.partition import check_dropout, check_family
from swarmflow.compute.stage import Stage, build_stage
from swarmflow.errors import ModelError
from tests.compute.families import tiny
from tests.compute.models import GIVEN, batch, stages_of


def _attention(stage: Stage) -> str:
    return str(stage.model.config._attn_implementation)


@pytest.mark.parametrize(
    ("family", "own"), [("llama", "sdpa"), ("gemma2", "eager"), ("gpt_oss", "eager"), ("bloom", "eager")]
)
def test_a_family_has_its_own_attention_where_nothing_is_asked(family: str, own: str) -> None:
    config = model_config(tiny(family))
    assert _attention(build_stage(config, (2,), 1, device="cpu")) == own
    assert _attention(build_stage(config, (2,), 1, device="cpu", dropout=True)) == "eager"


def test_either_gives_the_same_logits_up_to_rounding() -> None:
    found = []
    for attention in ("sdpa", "eager"):
        stages = stages_of(model_config(GIVEN["mistral"], None, attention), (1, 3))
        assert [_attention(stage) for stage in stages] == [attention] * 3
        hidden: torch.Tensor = batch()[0]
        for stage in stages:
            hidden = stage.forward(hidden)
        found.append(hidden)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["jamba", "bamba"])
def test_each_block_has_the_mask_of_its_kind_where_the_configuration_computes_the_kinds(family: str) -> None:
    """Fused attention takes no mask of a row of one document, so it does not notice another block's."""
    check_family(model_config(tiny(family), None, "eager"))
    check_dropout(model_config(tiny(family)))


@pytest.mark.parametrize(
    ("family", "attention", "why"),
    [
        ("gemma2", "sdpa", 'no such attention for models of type gemma2; take "eager"'),
        ("llama", "flex", "model.attention = 'flex': allowed: sdpa, eager"),
    ],
)
def test_what_cannot_be_is_refused_by_name(family: str, attention: str, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        model_config(tiny(family), None, attention)


def test_fused_attention_cannot_drop_out() -> None:
    with pytest.raises(ModelError, match=r"goes only without model\.dropout"):
        build_stage(model_config(GIVEN["llama"], None, "sdpa"), (2,), 0, device="cpu", dropout=True)


def test_the_scores_of_all_pairs_of_tokens_are_counted() -> None:
    fused, eager = (
        measure_activations(shrink(model_config(GIVEN["llama"], None, attention), 4), "fp32", False).block
        for attention in ("sdpa", "eager")
    )
    heads, scores = 4, 4 * 2  # bytes: the softmax of fp32 scores, and at least one tensor more
    assert eager[1] - fused[1] >= heads * scores / 2


def test_an_export_does_not_say_how_it_was_trained(tmp_path: Path) -> None:
    config = model_config(GIVEN["llama"], None, "eager")
    stages = stages_of(config, (2,))

    def reader(stage: int) -> ReadParameters:
        return lambda group, start, stop: memory_of(stages[stage].groups[group].params[start:stop])

    export_stagewise(config, (2,), reader, tmp_path / "out")
    assert "attention" not in (tmp_path / "out" / "config.json").read_text().replace("attention_", "")
    assert model_config(tmp_path / "out") == model_config(GIVEN["llama"])
