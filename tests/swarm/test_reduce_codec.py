"""A swarm whose sums travel in 16 bits learns what a plain loop learns that rounds alike, whoever dies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from swarmflow.chaos.compare import compare_bits, order_limits
from swarmflow.chaos.plain import load_model, parameters, train
from swarmflow.compute.families import model_config
from swarmflow.compute.layout import stage_layout
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from tests.swarm.blockwise import Blockwise
from tests.swarm.reference import Recipe, relative_difference
from tests.swarm.runs import FINISH_S, STAGES, prepare, recipe, settings, start

CUT = [1, 2]


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.usefixtures("one_thread")
def test_the_swarm_learns_what_a_plain_loop_learns_that_rounds_alike(tmp_path: Path, forks: ForkServer) -> None:
    """Not a bit shows that peers were killed; the plain loop and the swarm differ in the last digit of an update."""
    model, corpus = prepare(tmp_path, "llama")
    of = recipe("adamw", steps=40)
    run = settings(model, corpus, of)
    run["model"]["cut"], run["train"]["reduce_codec"] = CUT, "blockwise16"
    found, losses = learnt(tmp_path / "undisturbed", run, (), forks)
    disturbed, _ = learnt(tmp_path / "disturbed", run, ((0, 10), (4, 20)), forks)
    assert compare_bits(disturbed, found, "the undisturbed one").holds
    wanted, wanted_losses = plain_loop(model, corpus, of)
    limits = order_limits(wanted, plain_loop(nudged(model, tmp_path / "nudged"), corpus, of)[0])
    far = {name: d for name, d in relative_difference(found, wanted).items() if not d <= limits[name]}
    assert far == {}, f"limits {limits}"
    torch.testing.assert_close(losses, wanted_losses, rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.usefixtures("one_thread")
def test_rounding_costs_no_loss(tmp_path: Path) -> None:
    """The plain loop that rounds stands for the swarm, as shown above."""
    model, corpus = prepare(tmp_path, "llama", corpus_bytes=12000)
    of = recipe("adamw", steps=200, microbatches=4)
    _, plain = train(model, corpus, of)
    _, rounded = plain_loop(model, corpus, of)
    assert plain[-1] < 0.9 * plain[0]
    assert rounded[-1] == pytest.approx(plain[-1], rel=0.01)
    assert rounded != plain


def learnt(
    folder: Path, run: dict[str, Any], kills: Sequence[tuple[int, int]], forks: ForkServer
) -> tuple[dict[str, Tensor], list[float]]:
    """What 3 x 2 peers learn, and the losses. kills: (number of a peer, after how many steps)."""
    with LocalSwarm(folder, run, forks=forks) as swarm:
        start(swarm, trainers=1, peers=2 * STAGES)
        for number, steps in kills:
            swarm.wait_steps(steps, FINISH_S)
            swarm.peers[number].kill()
        swarm.wait_finished(FINISH_S)
        return parameters(load_model(swarm.output / "final")), [step["loss"] for step in swarm.steps()]


def plain_loop(model: Path, corpus: Path, of: Recipe) -> tuple[dict[str, Tensor], list[float]]:
    config = model_config(model)
    stages = [[slot.name for slot in stage_layout(config, CUT, number).groups["own"]] for number in range(STAGES)]
    return train(model, corpus, of, adding_up=Blockwise(stages, of.microbatches))


def nudged(model: Path, folder: Path) -> Path:
    """The same model with some last digits changed: where a gradient is next to an edge, it is rounded otherwise."""
    other = load_model(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + 1e-7 * torch.randn_like(parameter))
    other.save_pretrained(folder)
    return folder
