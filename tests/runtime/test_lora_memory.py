"""An 8B model that is fine-tuned fits into the cards that it should fit into, by the accounting; no weight is made."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from peers.fitting import MemoryBudget, MicrobatchMemory, NoMemoryError
from swarmflow.compute.adapters import with_adapters
from swarmflow.compute.demands import Activations, Growth, StageDemands, measure_activations, stage_demands
from swarmflow.compute.families import model_config
from swarmflow.finetuning import Lora
from swarmflow.manifest import Manifest
from tests.runtime.manifests import manifest

GB = 10**9
CUT = (11, 22)
LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
NARROWER = 8  # the factor by which the model is narrower whose activations are measured


def fine_tuned(*, quantized: bool) -> Manifest:
    config = with_adapters(model_config(LLAMA_8B), Lora(16, 32, (), half=True, quantized=quantized))
    return manifest(
        model=config,
        cut=CUT,
        vocab_size=LLAMA_8B["vocab_size"],
        hidden_size=LLAMA_8B["hidden_size"],
        seq_len=1024,
        microbatch_sequences=1,
        precision="bf16",
        accumulate="fp32",
        reduce_codec="blockwise16",
        tied=False,
        base=("0" * 64,) * 3,
    )


@pytest.fixture(scope="module")
def activations() -> Activations:
    """Those of the model, in proportion to the width: measured on a narrow one."""
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    narrow = {**LLAMA_8B, **{key: int(str(LLAMA_8B[key])) // NARROWER for key in sizes}, "vocab_size": 512}
    found = measure_activations(with_adapters(model_config(narrow), Lora(16, 32, half=True)), "bf16", dropout=False)

    def wide(growth: Growth) -> Growth:
        return NARROWER * growth[0], NARROWER * growth[1]

    return Activations(wide(found.embedding), wide(found.block), wide(found.head))


def demanded(of: Manifest, activations: Activations) -> list[StageDemands]:
    return stage_demands(of, activations)


def check(of: Manifest, activations: Activations, limit_bytes: int) -> None:
    """Check as each of three peers does, on a card of this size. Raises NoMemoryError."""
    for stage in demanded(of, activations):
        # A CPU stands for the card, so that its limit is not set on a real one; the journal is in the host's memory.
        budget = MemoryBudget(torch.device("cpu"), limit_bytes, journal_given_bytes=0)
        budget.check_stage(of, stage.stage)
        try:
            budget.fitting(of, stage.stage, MicrobatchMemory.kept(stage.microbatch_bytes))
        except NoMemoryError:
            inputs_bytes = 2 * len(stage.blocks) * of.seq_len * of.hidden_size
            a_block = (stage.microbatch_bytes - inputs_bytes) // len(stage.blocks)
            again = MicrobatchMemory.recomputed(inputs_bytes, a_block)
            budget.fitting(of, stage.stage, again)


def test_half_precision_takes_three_cards_of_12_gb(activations: Activations) -> None:
    of = fine_tuned(quantized=False)
    check(of, activations, 12 * GB)
    with pytest.raises(NoMemoryError) as refused:
        check(of, activations, 6 * GB)
    assert str(refused.value).startswith(
        "--memory-limit 6.0 GB: stage 0 needs more than 6.4 GB: 6.2 GB for the stage, 200.0 MB for the process"
    )
    stages = [stage.memory_bytes / GB for stage in demanded(of, activations)]
    assert 15 < sum(stages) < 20, "2 bytes for each of 8 billion parameters, and what adapters take"


def test_four_bits_take_three_cards_of_6_gb(activations: Activations) -> None:
    of = fine_tuned(quantized=True)
    check(of, activations, 6 * GB)
    assert sum(stage.memory_bytes for stage in demanded(of, activations)) < 9 * GB
    joins = [stage.state_bytes / GB for stage in demanded(of, activations)]
    assert max(joins) < 3, "what a newcomer fetches"
    whole = replace(of, model=with_adapters(of.model, None), base=())
    with pytest.raises(NoMemoryError):
        check(whole, activations, 24 * GB)
