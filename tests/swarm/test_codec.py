"""8-bit boundary tensors cost next to nothing in loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from tests.swarm.reference import train
from tests.swarm.runs import FINISH_S, prepare, recipe, settings, start

LOSS_DIFFERENCE_MAX = 0.01


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
def test_blockwise8_ends_within_a_hundredth_of_the_uncompressed_loss(tmp_path: Path, forks: ForkServer) -> None:
    """The uncompressed run is the plain loop: test_exactness shows that a swarm without a codec does the same."""
    model, corpus = prepare(tmp_path, "llama", corpus_bytes=12000)
    of = recipe("adamw", steps=100, microbatches=4)
    run = settings(model, corpus, of, codec="blockwise8")
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        start(swarm, trainers=1, peers=3)
        swarm.wait_finished(FINISH_S)
        losses = [step["loss"] for step in swarm.steps()]
    _, plain = train(model, corpus, of)
    assert len(losses) == of.steps
    assert plain[-1] < 0.9 * plain[0]
    assert losses[-1] == pytest.approx(plain[-1], rel=LOSS_DIFFERENCE_MAX)
    assert losses != plain
