"""Numbers that are not finite: a run without the peers that gave them learns the same, or it stops and says where."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmflow.chaos import spoiling
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm, environment
from tests.swarm.reference import load_model, parameters
from tests.swarm.runs import FINISH_S, LONG, STAGES, exported, prepare, recipe, settings, start
from tests.swarm.test_exactness import assert_learnt

WANTED_S = 60.0
WHAT: dict[spoiling.What, str] = {
    "activation": "the activation of microbatch",
    "sum": "the gradient of step",
    "gradient": "the gradient of microbatch",
}


def put_out(log: Path, reason: str) -> bool:
    """Whether the leader has put out a peer for this."""
    return f" is gone: {reason} " in log.read_text(encoding="utf-8")


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
def test_peers_that_give_not_a_number_are_put_out_and_nothing_of_it_is_learnt(tmp_path: Path) -> None:
    """One of each stage, one after another: in what it sends on, in its sums, and in what it sends back.

    A spoilt peer is found when it is next given a microbatch. IWRR gives one to each peer every now and then; the
    default router may leave one that was slow at the beginning alone for a minute. The run is longer than it can
    take, and ends with the first checkpoint after the last of them was found.
    """
    model, corpus = prepare(tmp_path, "llama")
    config = settings(model, corpus, recipe("adamw", steps=LONG))
    config["train"] |= {"router": "iwrr", "checkpoint_every": 20}
    with (
        ForkServer(environment(threads=1), "swarmflow.chaos.spoiling") as forks,
        LocalSwarm(tmp_path / "swarm", config, forks=forks) as swarm,
    ):
        start(swarm, trainers=2, peers=2 * STAGES)
        swarm.wait(lambda: any(step["peers"] == [2] * STAGES for step in swarm.steps()), "all peers", WANTED_S)
        log = swarm.trainers[0].log
        for (what, reason), peer in zip(WHAT.items(), swarm.peers, strict=False):
            spoiling.spoil(swarm.state_folder(peer.name), what)
            swarm.wait(partial(put_out, log, reason), f"{peer.name} to be put out", WANTED_S)
        found = len(swarm.steps())
        learnt = swarm.wait(partial(exported, swarm.output, found + 1), "a checkpoint", FINISH_S)
        steps, text = swarm.steps()[:learnt], log.read_text(encoding="utf-8")
    assert [step["step"] for step in steps] == list(range(learnt))
    assert all(math.isfinite(step["loss"]) and math.isfinite(step["grad_norm"]) for step in steps)
    assert text.count("it may serve again in 60 s") >= len(WHAT)
    of = recipe("adamw", steps=learnt)
    assert_learnt(parameters(load_model(swarm.output / f"step-{learnt}")), model, corpus, of)


@pytest.mark.swarm
@pytest.mark.slow
def test_weights_that_give_nothing_finite_stop_the_run_with_the_microbatch_and_the_layer(
    tmp_path: Path, forks: ForkServer
) -> None:
    model, corpus = prepare(tmp_path, "llama")
    weights: Any = load_model(model)
    with torch.no_grad():
        weights.model.layers[1].post_attention_layernorm.weight.fill_(3e38)
    weights.save_pretrained(model)
    with LocalSwarm(tmp_path / "swarm", settings(model, corpus, recipe("sgd")), forks=forks) as swarm:
        start(swarm, trainers=1, peers=STAGES)
        for process in swarm.processes:
            process.expendable = True
        swarm.wait(lambda: all(p.exit_code is not None for p in swarm.processes), "the end of the run", FINISH_S)
        codes, [trainer] = {process.exit_code for process in swarm.processes}, swarm.trainers
        last_lines = [process.log.read_text(encoding="utf-8").splitlines()[-1] for process in [trainer, *swarm.peers]]
    reason = r"the activation of microbatch 0/\d is not finite in model\.layers\.1 of stage 1, twice on \S+"
    assert 0 not in codes
    assert re.fullmatch(rf"swarmflow: {reason}; no version is on disk", last_lines[0])
    for line in last_lines[1:]:
        assert re.fullmatch(rf"swarmflow: the run stopped at version 0: {reason}", line)
