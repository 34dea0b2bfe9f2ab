"""A peer that joins a running swarm has the very bits of the others, over however many steps it has loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm, kill_at_once
from tests.swarm.reference import load_model, parameters
from tests.swarm.runs import FINISH_S, prepare, recipe, settings

STEPS = 100
JOIN_S = 60.0
STAYS = ("--rebalance-period", "0")
SLOW = "6Mbit/s"  # of each donor: the state takes several steps, which themselves leave something of the links free


def read(process: LocalProcess) -> str:
    """The log of a process."""
    return process.log.read_text(encoding="utf-8", errors="replace")


def learnt(
    folder: Path, model: Path, corpus: Path, train: dict[str, Any], forks: ForkServer, join: bool
) -> dict[str, Tensor]:
    """What two stages of two peers learn.

    join: a third peer of the first stage comes after the run has begun. As soon as it takes part, the two from which it
    has loaded die.
    """
    of = recipe("adamw", steps=STEPS)
    run = settings(model, corpus, of, stages=2)
    run["model"]["cut"] = [1]  # else it depends on who is there as the run begins
    run["train"] |= train
    with LocalSwarm(folder, run, forks=forks) as swarm:
        swarm.start_trainer()
        # Those behind slow links have to be there from the first step on: to follow a step takes as long as to make it.
        slow = [swarm.start_peer("--upload-limit", SLOW if join else "1GB/s", *STAYS, stage=0) for _ in range(2)]
        swarm.wait(lambda: all("is loaded at version 0" in read(peer) for peer in slow), "the first stage", JOIN_S)
        for _ in range(2):
            swarm.start_peer(*STAYS, stage=1)
        if join:
            swarm.wait(lambda: [2, 2] in (step["peers"] for step in swarm.steps()), "a step with all peers", JOIN_S)
            begun = len(swarm.steps())
            newcomer = swarm.start_peer(stage=0)
            swarm.wait(lambda: "is loaded at version" in read(newcomer), "the load", JOIN_S)
            swarm.wait(lambda: swarm.steps()[-1]["peers"] == [3, 2], "the newcomer to take part", JOIN_S)
            assert len(swarm.steps()) > begun + 2, "steps were made meanwhile"
            kill_at_once(swarm.peers[:2])
        swarm.wait_finished(FINISH_S)
        assert all(step["retries"] == 0 or join for step in swarm.steps())
    return parameters(load_model(swarm.output / "final"))


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize(
    "train",
    [
        pytest.param({"reduce_codec": "blockwise16", "delay": 1}, id="delayed"),
        pytest.param({"reduce_codec": "blockwise16"}, id="blockwise16", marks=pytest.mark.exhaustive),
        pytest.param({"accumulate": "exact"}, id="exact", marks=pytest.mark.exhaustive),
    ],
)
def test_a_newcomer_goes_on_with_the_bits_of_those_that_it_has_loaded_from(
    train: dict[str, Any], tmp_path: Path, forks: ForkServer
) -> None:
    model, corpus = prepare(tmp_path, "gpt2")
    undisturbed = learnt(tmp_path / "undisturbed", model, corpus, train, forks, join=False)
    joined = learnt(tmp_path / "joined", model, corpus, train, forks, join=True)
    assert all(joined[name].equal(value) for name, value in undisturbed.items())
