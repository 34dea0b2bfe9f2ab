"""Families beyond those that every test uses: they work cut into stages, or are refused by name with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from swarmflow.compute.families import model_config
from swarmflow.compute.partition import check_family
from swarmflow.compute.runner import StageRunner
from swarmflow.errors import ModelError
from tests.compute.models import batch, stages_of, whole_model

PLAIN = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 61,
    "max_position_embeddings": 32,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GROUPED = {**PLAIN, "num_key_value_heads": 2}
EXPERTS = {**GROUPED, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
SMALL_OPT = {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 61}
OF_BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2}

WORK: dict[str, dict[str, Any]] = {
    "the head calls a part of the base model": {"model_type": "opt", **SMALL_OPT, "word_embed_proj_dim": 16, **ENDS},
    "rotary frequencies that depend on the length": {
        "model_type": "phi3",
        **GROUPED,
        "rope_parameters": {**LONG, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 16},
    },
    "experts": {"model_type": "mixtral", **EXPERTS},
    "experts beside a plain layer": {
        "model_type": "qwen3_moe",
        **EXPERTS,
        "moe_intermediate_size": 16,
        "head_dim": 8,
        "mlp_only_layers": [0],
    },
    "no fused attention": {"model_type": "gemma2", **GROUPED, "head_dim": 8},
    "biases in place of positions": {
        "model_type": "bloom",
        "hidden_size": 32,
        "n_layer": 4,
        "n_head": 4,
        "vocab_size": 61,
        **ENDS,
    },
    "a norm without weights": {"model_type": "olmo", **GROUPED},
    "no attention": {
        "model_type": "mamba",
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "state_size": 4,
        "vocab_size": 61,
        **ENDS,
    },
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "looks ahead": ({"model_type": "electra", **PLAIN, "embedding_size": 32}, "sees later ones.*is_decoder"),
    "encoder": ({"model_type": "bart", **OF_BART}, "have an encoder"),
    "images": (
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **GROUPED}},
        "several models; train the text model alone, model_type 'gemma3_text'",
    ),
    "whole numbers": ({"model_type": "deepseek_v4", **EXPERTS}, r"no gradient trains \(model\.layers\.0"),
    "values without a rule": ({"model_type": "apertus", **GROUPED}, r"act_fn\.beta has no rule that fills it"),
    "head's own bias": ({"model_type": "bert", **PLAIN, "is_decoder": True}, r"cls\.predictions\.bias belongs to no"),
    "rotary frequencies that depend on the values of positions": (
        {
            "model_type": "llama",
            **GROUPED,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        },
        'rope_type "dynamic" looks at positions; set it to "default"',
    ),
    "experts' own loss": (
        {"model_type": "doge", **EXPERTS, "output_router_logits": True},
        "balances their experts is a special one; set output_router_logits to false",
    ),
    "experts' own loss under another name": (
        {"model_type": "jetmoe", **EXPERTS, "kv_channels": 8, "output_router_logits": True},
        "balances their experts is a special one; set output_router_logits to false",
    ),
    "sizes that do not fit": (
        {"model_type": "youtu", **GROUPED, "qk_rope_head_dim": 4, "q_lora_rank": 8, "kv_lora_rank": 8},
        "do not run in stages",
    ),
}


@pytest.mark.parametrize("what", WORK)
def test_it_computes_in_stages_what_transformers_computes(what: str) -> None:
    check_family(model_config(WORK[what]))


@pytest.mark.parametrize("what", WORK)
def test_and_learns_the_same(what: str) -> None:
    """The gradient of every parameter, through the runner of each of three stages, as peers do it."""
    config = model_config(WORK[what])
    stages = stages_of(config, (1, 2))
    runners = [StageRunner(stage) for stage in stages]
    x, targets = batch()
    hidden = [x]
    for runner in runners[:-1]:
        hidden.append(runner.forward("m", hidden[-1]))
    loss, count, gradient = runners[-1].loss("m", hidden[-1], targets)
    for runner in reversed(runners[:-1]):
        assert gradient is not None
        gradient = runner.backward("m", gradient)
    whole = whole_model(config, stages)
    logits = whole(input_ids=x.long(), use_cache=False).logits
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), reduction="sum")
    wanted.backward()
    assert loss == pytest.approx(float(wanted.detach()), rel=1e-5)
    assert count == targets.numel()
    found: dict[str, torch.Tensor] = {}
    for stage in stages:
        for name, _, grad in stage.named_parameters():
            assert grad is not None
            found[name] = found[name] + grad if name in found else grad.clone()
    for name, parameter in whole.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found[name], expected, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("what", REFUSED)
def test_the_refusal_names_the_family_and_says_why(what: str) -> None:
    config, reason = REFUSED[what]
    with pytest.raises(ModelError, match=rf"{config['model_type']} are not supported: .*{reason}") as caught:
        check_family(model_config(config))
    assert "\n" not in str(caught.value)
