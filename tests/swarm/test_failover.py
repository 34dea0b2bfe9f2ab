"""The leading trainer dies by SIGKILL: another one goes on with the very step, and what is learnt does not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmflow.runtime.forkserver import ForkServer
from swarmflow.runtime.local import LocalProcess, LocalSwarm
from tests.swarm.reference import load_model, parameters
from tests.swarm.runs import FINISH_S, STAGES, prepare, recipe, settings
from tests.swarm.test_exactness import assert_learnt

STEPS = 20


def start(swarm: LocalSwarm) -> LocalProcess:
    """Two trainers of one output folder, of which the first leads, and a peer a stage."""
    leader = swarm.start_trainer()
    swarm.start_trainer(beside=True)
    for stage in range(STAGES):
        swarm.start_peer(stage=stage)
    return leader


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["gone", "restarted"])
def test_another_trainer_leads_on(again: bool, tmp_path: Path, forks: ForkServer) -> None:
    model, corpus = prepare(tmp_path, "llama")
    of = recipe("adamw", steps=STEPS)
    with LocalSwarm(tmp_path / "swarm", settings(model, corpus, of), forks=forks) as swarm:
        leader = start(swarm)
        swarm.wait(lambda: len(swarm.steps("trainer-1")) > STEPS // 4, "a quarter of the steps", FINISH_S)
        leader.kill()
        if again:
            swarm.start_again(leader)
        survivors = [process for process in swarm.processes if process.exit_code is None]
        swarm.wait(lambda: all(p.exit_code is not None for p in survivors), "the end of the run", FINISH_S)
        steps = swarm.steps("trainer-1")
        log = (swarm.folder / "trainer-1.log").read_text()
    assert "leading from here on" in log
    assert "back from version" not in log, "no step is lost"
    assert [step["step"] for step in steps] == list(range(STEPS))
    assert_learnt(parameters(load_model(swarm.output / "final")), model, corpus, of)
