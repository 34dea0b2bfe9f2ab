"""What is told of a stage before a run is what its peers will find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from swarmflow.compute.blocks import alignment
from swarmflow.compute.demands import measure_activations, stage_demands
from swarmflow.compute.families import model_config, to_config
from swarmflow.compute.grouped_stage import two_documents
from swarmflow.compute.layout import stage_layout
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.tensorfile import file_bytes
from swarmflow.runtime.operations.exporting import state_tensor_lengths
from tests.compute.models import stages_of
from tests.compute.test_families import WORK
from tests.runtime.manifests import manifest

CUT = (1, 3)
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}
BLOOM = {**WORK["biases in place of positions"], "hidden_size": 64, "vocab_size": 100}
EXPERTS = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("given", [LLAMA, BLOOM, EXPERTS], ids=lambda given: str(given["model_type"]))
def test_a_microbatch_takes_about_what_is_told(given: dict[str, Any], precision: str) -> None:
    """Measured on short sequences, for one of 256 tokens: attention without a fused kernel grows with its square."""
    config = model_config(given)
    run = replace(manifest(), model=config, cut=CUT, hidden_size=64, seq_len=256, microbatch_sequences=2)
    told = stage_demands(replace(run, precision=precision), measure_activations(config, precision, False))
    for stage in range(len(CUT) + 1):
        x = torch.zeros(2, 256, dtype=torch.int64) if stage == 0 else torch.zeros(2, 256, 64)
        taken = StageRunner(build_stage(config, CUT, stage, device="cpu"), precision).activation_bytes(x)
        assert told[stage].microbatch_bytes == pytest.approx(taken, rel=0.1)


@pytest.mark.parametrize("given", [LLAMA, {**EXPERTS, "output_router_logits": True}], ids=["llama", "balanced experts"])
def test_what_keeps_documents_apart_in_a_row_is_counted(given: dict[str, Any]) -> None:
    """A mask for each block, which grows with the square of the length."""
    config = model_config(given)
    run = replace(manifest(), model=config, cut=CUT, hidden_size=64, seq_len=256, microbatch_sequences=2)
    told = stage_demands(run, measure_activations(config, "fp32", False, positions=True))
    for stage in range(len(CUT) + 1):
        built = build_stage(config, CUT, stage, device="cpu")
        x = torch.zeros(2, 256, dtype=torch.int64) if stage == 0 else torch.zeros(built.boundary_shape(2, 256))
        taken = StageRunner(built, "fp32").activation_bytes(two_documents(x, 256))
        assert told[stage].microbatch_bytes == pytest.approx(taken, rel=0.1)


OPT = {
    "model_type": "opt",
    "hidden_size": 64,
    "word_embed_proj_dim": 32,
    "ffn_dim": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize("given", [LLAMA, {**LLAMA, "tie_word_embeddings": True}, OPT], ids=["llama", "tied", "opt"])
@pytest.mark.parametrize("cut", [(), CUT])
def test_tables_are_looked_up_and_not_computed_with(given: dict[str, Any], cut: tuple[int, ...]) -> None:
    config = model_config(given)
    whole: nn.Module = AutoModelForCausalLM.from_config(to_config(config))
    multiplied = {
        id(parameter): parameter.numel()
        for part in whole.modules()
        if not isinstance(part, nn.Embedding)
        for parameter in part.parameters(recurse=False)
    }
    layouts = [stage_layout(config, cut, stage) for stage in range(len(cut) + 1)]
    assert sum(layout.computed_parameters for layout in layouts) == sum(multiplied.values())


@pytest.mark.parametrize(
    "rounding", [("fp32", "none"), ("exact", "none"), ("fp32", "blockwise16")], ids=["fp32", "exact", "blockwise16"]
)
@pytest.mark.parametrize(("optimizer", "state_bits"), [("adamw", 32), ("sgd", 32), ("adamw", 8), ("sgd", 8)])
def test_a_stage_takes_what_is_told_and_sends_its_boundaries(
    optimizer: str, state_bits: int, rounding: tuple[str, str]
) -> None:
    accumulate, reduce_codec = rounding
    config = model_config({**LLAMA, "tie_word_embeddings": True})
    run = replace(
        manifest(),
        model=config,
        cut=CUT,
        hidden_size=64,
        vocab_size=100,
        seq_len=16,
        microbatch_sequences=2,
        optimizer=optimizer,
        state_bits=state_bits,
        momentum=0.9,
        accumulate=accumulate,
        reduce_codec=reduce_codec,
        codec="fp16",
    )
    told = stage_demands(run, measure_activations(config, "fp32", False))
    names = make_optimizer(OptimizerSettings.of(run)).state_names()
    microbatches = None if rounding == ("fp32", "none") else 4
    align = alignment(state_bits)
    stages = stages_of(config, CUT, microbatches=microbatches, reduce_codec=reduce_codec, align=align)
    for stage, one in zip(stages, told, strict=True):
        for group in stage.groups.values():
            group.allocate(names)
        groups = stage.groups.values()
        logits = 3 * 4 * 2 * 16 * 100 if stage.last else 0
        assert one.memory_bytes == sum(group.nbytes + group.sums.nbytes for group in groups) + logits
        assert one.state_bytes == sum(tensor.nbytes for group in groups for tensor in group.tensors().values())
        assert one.parameters == stage.layout.parameters
        assert list(one.blocks) == list(stage.blocks)
    boundary, tokens = 2 * 16 * 64 * 2, 2 * 16 * 8
    assert [one.sent_bytes for one in told] == [boundary, 2 * boundary, boundary]
    assert [one.received_bytes for one in told] == [boundary + tokens, 2 * boundary, boundary]


@pytest.mark.parametrize(("optimizer", "share"), [("adamw", (4 + 2 + 2 / 64) / 12), ("sgd", (4 + 1 + 1 / 64) / 8)])
def test_8_bit_moments_take_a_byte_and_a_scale_a_block(optimizer: str, share: float) -> None:
    """In memory and on the link, and on the disk: but for what lies between parameters of a block's size or more."""
    config = model_config({**LLAMA, "hidden_size": 256, "intermediate_size": 1024})
    run = replace(manifest(), model=config, cut=CUT, hidden_size=256, vocab_size=100, optimizer=optimizer)
    coded, activations = replace(run, state_bits=8), measure_activations(config, "fp32", False)
    sizes = [
        [(one.state_bytes, file_bytes(state_tensor_lengths(of, one.stage))) for one in stage_demands(of, activations)]
        for of in (run, coded)
    ]
    for full, small in zip(*sizes, strict=True):
        assert small[0] == pytest.approx(share * full[0], rel=1e-3)
        assert small[1] == pytest.approx(small[0], abs=2000), "a header beside the numbers"
        assert full[1] == pytest.approx(full[0], abs=2000)
    memory = [[one.memory_bytes for one in stage_demands(of, activations)] for of in (run, coded)]
    for full, small, of in zip(*memory, sizes[0], strict=True):
        assert full - small == pytest.approx(of[0] * (1 - share), rel=1e-2)
