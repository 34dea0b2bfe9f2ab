"""A run is cut anew between two steps, and learns what one process learns."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm, toml_text
from tests.swarm.reference import load_model, parameters
from tests.swarm.runs import FINISH_S, prepare, recipe, settings
from tests.swarm.test_exactness import assert_learnt

pytestmark = [pytest.mark.swarm, pytest.mark.slow]

STEPS = 16


def end(swarm: LocalSwarm, trainer: LocalProcess) -> None:
    """End a trainer as its user does: it writes a checkpoint."""
    trainer.send(signal.SIGINT)
    swarm.wait(lambda: trainer.exit_code is not None or None, "the end of the trainer", FINISH_S)


def test_the_cut_changes_in_mid_run_while_peers_are_killed(tmp_path: Path, forks: ForkServer) -> None:
    """Two stages become three, and two others after that; peers stay, and join again by themselves."""
    model, corpus = prepare(tmp_path, "llama")
    of = recipe("adamw", steps=STEPS)
    run = settings(model, corpus, of, stages=2)
    run["model"]["cut"] = [1]
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        trainer = swarm.start_trainer()
        for _ in range(5):
            swarm.start_peer()
        for cut in ([1, 2], [2]):
            done = len(swarm.steps())
            swarm.wait_steps(done + 3, FINISH_S)
            end(swarm, trainer)
            run["model"] |= {"stages": len(cut) + 1, "cut": cut}
            swarm.run_file.write_text(toml_text(run), encoding="utf-8")
            trainer = swarm.start_again(trainer)
            swarm.wait_steps(len(swarm.steps()) + 1, FINISH_S)
            swarm.peers[len(cut)].kill()
        log = trainer.log.read_text(encoding="utf-8")
        swarm.wait_finished(FINISH_S)
        assert "cut before the blocks [1, 2] until now and before [2] from now on" in log
        assert [len(step["peers"]) for step in swarm.steps()][:: STEPS - 1] == [2, 2]
        assert 3 in {len(step["peers"]) for step in swarm.steps()}
        assert [step["step"] for step in swarm.steps()] == list(range(STEPS))
        assert_learnt(parameters(load_model(swarm.output / "final")), model, corpus, of)
