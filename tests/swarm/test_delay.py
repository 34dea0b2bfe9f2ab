"""With `delay = 1` a swarm learns what a plain loop learns whose gradients are one version old, whoever dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from swarmflow.chaos.compare import compare_bits, order_limits
from swarmflow.chaos.plain import load_model, microbatch, parameters
from swarmflow.compute.families import model_config
from swarmflow.compute.layout import stage_layout
from swarmflow.local.forkserver import ForkServer
from tests.swarm.blockwise import Blockwise
from tests.swarm.reference import Recipe, relative_difference
from tests.swarm.runs import STAGES, prepare, recipe, settings
from tests.swarm.test_reduce_codec import CUT, learnt, nudged

KILLS = ((0, 8), (4, 16))


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("codec", ["blockwise16", pytest.param("none", marks=pytest.mark.exhaustive)])
def test_the_swarm_learns_what_a_plain_loop_learns_with_delayed_updates(
    codec: str, tmp_path: Path, forks: ForkServer
) -> None:
    model, corpus = prepare(tmp_path, "llama")
    of = recipe("adamw", steps=30)
    run = settings(model, corpus, of)
    run["model"]["cut"] = CUT
    run["train"] |= {"reduce_codec": codec, "delay": 1}
    disturbed, losses = learnt(tmp_path / "disturbed", run, KILLS, forks)
    wanted, wanted_losses = plain_loop(model, corpus, of, codec)
    if codec == "none":  # what the order of additions does
        limits = order_limits(wanted, plain_loop(model, corpus, of, codec, reverse=True)[0])
    else:  # which changes nothing; but a gradient beside an edge of the grid is rounded otherwise
        limits = order_limits(wanted, plain_loop(nudged(model, tmp_path / "nudged"), corpus, of, codec)[0])
        undisturbed, _ = learnt(tmp_path / "undisturbed", run, (), forks)
        assert compare_bits(disturbed, undisturbed, "the undisturbed one").holds
    far = {name: d for name, d in relative_difference(disturbed, wanted).items() if not d <= limits[name]}
    assert far == {}, f"limits {limits}"
    torch.testing.assert_close(losses, wanted_losses, rtol=1e-5, atol=0)


def plain_loop(
    folder: Path,
    corpus: Path,
    of: Recipe,
    codec: str,
    change: Callable[[PreTrainedModel], None] = lambda _: None,
    *,
    reverse: bool = False,
) -> tuple[dict[str, Tensor], list[float]]:
    """The twin: the gradient of step t is that of version max(t - 1, 0), and the updates are applied in order.

    Return the parameters, and the loss of each step. change: made to the model first; what it freezes is not trained.
    reverse: add a step's microbatches up from the last to the first.
    """
    model, latest = load_model(folder), load_model(folder)
    for each in (model, latest):
        change(each)
    given, trained = of.optimizer, [p for p in latest.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=given["lr"], betas=given["betas"], eps=given["eps"], weight_decay=given["weight_decay"]
    )
    config = model_config(folder)
    stages = [[slot.name for slot in stage_layout(config, CUT, number).groups["own"]] for number in range(STAGES)]
    grid = Blockwise(stages, of.microbatches, delay=1) if codec == "blockwise16" else None
    tokens = torch.frombuffer(bytearray(corpus.read_bytes()), dtype=torch.uint8).long()
    count, losses = of.microbatches * of.sequences * of.seq_len, []
    for step in range(of.steps):
        model.zero_grad()
        total = 0.0
        order = range(of.microbatches)
        for index in reversed(order) if reverse else order:
            inputs, targets = microbatch(tokens, of, step, index)
            logits = model(input_ids=inputs, use_cache=False).logits
            loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
            torch.autograd.backward(loss)
            total += float(loss.detach())
            if grid is not None:
                grid.add(model, step * of.microbatches + index)
        if grid is not None:
            grid.finish(model)
        updated = dict(latest.named_parameters())
        with torch.no_grad():
            for name, old in model.named_parameters():
                if not old.requires_grad:
                    continue
                assert old.grad is not None
                updated[name].grad = old.grad / count
                old.copy_(updated[name])  # the next step's gradient is that of the version before this update
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(total / count)
    return parameters(latest), losses
