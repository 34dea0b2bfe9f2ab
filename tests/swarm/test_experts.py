"""A mixture of experts, balanced over all stages, learns in a swarm what it learns in one process, whatever dies."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from transformers import MiniMaxM2Config

from swarmflow.chaos.plain import write_model
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from tests.swarm.reference import VOCAB, load_model, parameters, relative_difference, train
from tests.swarm.runs import FINISH_S, LONG, STAGES, learnt_by_all, prepare, recipe, settings

BIAS = "e_score_correction_bias"


def _model(folder: Path) -> Path:
    """A folder as transformers saves it: with experts one by one, and biases that no gradient trains."""
    config = MiniMaxM2Config(
        hidden_size=32,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        vocab_size=VOCAB,
        max_position_embeddings=64,
        output_router_logits=True,
        router_aux_loss_coef=0.1,
        bos_token_id=None,
        eos_token_id=None,
    )
    write_model(config, folder)
    model = load_model(folder)
    for name, buffer in model.named_buffers():
        if BIAS in name:
            buffer.copy_(torch.linspace(0.2, -0.2, buffer.numel()))
    model.save_pretrained(folder)
    return folder


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
def test_balanced_experts_learn_what_they_learn_in_one_process(tmp_path: Path, forks: ForkServer) -> None:
    _, corpus = prepare(tmp_path, "llama")
    model = _model(tmp_path / "experts")
    run = settings(model, corpus, recipe("sgd", steps=LONG))
    run["train"]["checkpoint_every"] = 10
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        swarm.start_trainer()
        for _ in range(2 * STAGES):
            swarm.start_peer()
        swarm.wait(lambda: [2] * STAGES in (step["peers"] for step in swarm.steps()) or None, "all peers", FINISH_S)
        swarm.peers[1].send(signal.SIGKILL)
        swarm.wait_steps(len(swarm.steps()) + 2, FINISH_S)
        swarm.start_peer()
        version = learnt_by_all(swarm, [2] * STAGES)
        losses = [step["loss"] for step in swarm.steps()[:version]]
    wanted, expected = train(model, corpus, recipe("sgd", steps=version))
    found = load_model(swarm.output / f"step-{version}")
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=0)
    # A choice of experts is not continuous: what rounding changes may be a choice, and more than in other families.
    far = {name: d for name, d in relative_difference(parameters(found), wanted).items() if not d <= 1e-3}
    assert far == {}
    biases = {name: buffer for name, buffer in found.named_buffers() if BIAS in name}
    assert len(biases) == 3
    assert all(torch.equal(bias, torch.linspace(0.2, -0.2, bias.numel())) for bias in biases.values())
