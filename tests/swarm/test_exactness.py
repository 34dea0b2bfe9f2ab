"""A swarm of real processes learns exactly what one plain PyTorch process learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from swarmflow.chaos.compare import LIMIT, order_limits
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from tests.compute.test_compiled_blocks import HAS_COMPILER, NO_COMPILER
from tests.swarm.reference import Recipe, load_model, parameters, relative_difference, train
from tests.swarm.runs import FINISH_S, LONG, STAGES, learnt_by_all, prepare, recipe, settings, start

# The optimizer knows nothing of the family: one family has both of them, and every family has one. Of each run of the
# tests are gpt2 in test_faults.py and llama in test_flow.py.
TRIALS = (
    pytest.param("gpt2", "adamw", marks=pytest.mark.exhaustive),
    ("gpt2", "sgd"),
    ("llama", "adamw"),
    ("qwen2", "sgd"),
)


def assert_learnt(found: dict[str, Tensor], model: Path, corpus: Path, of: Recipe) -> list[float]:
    """Compares with the plain loop, tensor by tensor; returns the plain loop's losses."""
    wanted, losses = train(model, corpus, of)
    limits = order_limits(wanted, train(model, corpus, of, reverse=True)[0])
    far = {name: d for name, d in relative_difference(found, wanted).items() if not d <= limits[name]}
    assert far == {}, f"limits {limits}"
    return losses


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize(("family", "optimizer"), TRIALS)
def test_the_swarm_learns_what_one_process_learns(
    family: str, optimizer: str, tmp_path: Path, forks: ForkServer
) -> None:
    model, corpus = prepare(tmp_path, family)
    run = settings(model, corpus, recipe(optimizer, steps=LONG))
    run["train"]["checkpoint_every"] = 10
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        start(swarm, trainers=2, peers=2 * STAGES, both_memories=True)
        version = learnt_by_all(swarm, [2] * STAGES)
        steps = swarm.steps()[:version]
    of = recipe(optimizer, steps=version)
    assert [step["step"] for step in steps] == list(range(of.steps))
    assert {step["microbatches"] for step in steps} == {of.microbatches}
    losses = assert_learnt(parameters(load_model(swarm.output / f"step-{version}")), model, corpus, of)
    torch.testing.assert_close([step["loss"] for step in steps], losses, rtol=1e-5, atol=0)


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.skipif(not HAS_COMPILER, reason=NO_COMPILER)
def test_peers_that_compile_their_blocks_learn_it_too_whatever_dies(tmp_path: Path, forks: ForkServer) -> None:
    model, corpus = prepare(tmp_path, "llama")
    run = settings(model, corpus, recipe("adamw", steps=LONG))
    run["train"]["checkpoint_every"] = 10
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        swarm.start_trainer()
        for number in range(2 * STAGES):
            swarm.start_peer(*(["--compile"] if number < STAGES else []))
        swarm.wait(lambda: [2] * STAGES in (step["peers"] for step in swarm.steps()) or None, "all peers", FINISH_S)
        assert all("the blocks are compiled" in peer.log.read_text() for peer in swarm.peers[:STAGES])
        swarm.peers[1].kill()
        swarm.wait_steps(len(swarm.steps()) + 2, FINISH_S)
        swarm.start_peer("--compile")
        swarm.wait(lambda: swarm.steps()[-1]["peers"] == [2] * STAGES or None, "all peers again", FINISH_S)
        version = learnt_by_all(swarm, [2] * STAGES)
    assert_learnt(
        parameters(load_model(swarm.output / f"step-{version}")), model, corpus, recipe("adamw", steps=version)
    )


def test_the_limits_are_far_below_what_one_microbatch_changes(tmp_path: Path) -> None:
    """The comparison above would see a single microbatch of the last step that is missing from 8."""
    model, corpus = prepare(tmp_path, "llama")
    of = recipe("adamw", steps=1)
    wanted, _ = train(model, corpus, of)
    short, _ = train(model, corpus, replace(of, microbatches=of.microbatches - 1))
    assert max(relative_difference(short, wanted).values()) > 10 * LIMIT
    with pytest.raises(AssertionError):
        assert_learnt(short, model, corpus, of)
