"""RUN.toml is corrected before the first step is committed: those who had joined join the corrected run."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm, toml_text
from tests.swarm.commands import swarmflow
from tests.swarm.test_bad_input import settings, work

pytestmark = pytest.mark.swarm

__all__ = ["work"]  # the fixture
FINISH_S = 120.0


def test_it_may_be_corrected_until_then_and_no_longer(work: Path, tmp_path: Path, forks: ForkServer) -> None:
    with LocalSwarm(tmp_path / "swarm", settings(work, steps=500, checkpoint_every=1000), forks=forks) as swarm:
        trainer = swarm.start_trainer()
        early = swarm.start_peer()  # one of two stages: no step is opened
        swarm.wait(lambda: "loads stage" in trainer.log.read_text(), "the first peer", FINISH_S)
        trainer.kill()
        swarm.run_file.write_text(toml_text(settings(work, steps=500, checkpoint_every=1000, microbatches=3)))
        again = swarm.start_again(trainer)
        swarm.wait(lambda: "swarmflow peer --join" in again.log.read_text(), "the invite", FINISH_S)
        swarm.start_peer()
        (first, *_) = swarm.wait_steps(2, FINISH_S)
        assert first["microbatches"] == 3
        assert "RUN.toml or the data have changed; no step was committed before" in again.log.read_text()
        assert early.exit_code is None
        again.kill()
        for peer in swarm.peers:
            peer.kill()
        swarm.run_file.write_text(toml_text(settings(work, steps=500, checkpoint_every=1000)))
        arguments = [argument for argument in trainer.arguments if argument != "trainer"]
        ended = swarmflow("trainer", *arguments)
        assert "train.microbatches = 2, but the run in" in ended.complaint
