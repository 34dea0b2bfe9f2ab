"""The leading trainer dies by SIGKILL: another one goes on with the very step, and what is learnt does not change."""

from __future__ import annotations

import fcntl
import signal
from pathlib import Path
from typing import Any

import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm, kill_at_once
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
@pytest.mark.parametrize(
    "again", [pytest.param(False, id="gone"), pytest.param(True, id="restarted", marks=pytest.mark.extended)]
)
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


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
def test_half_of_the_processes_are_killed_at_once(tmp_path: Path, forks: ForkServer) -> None:
    """The leader and a peer of each stage, 4 of 8: the other trainer goes on after a while, and nothing is lost."""
    model, corpus = prepare(tmp_path, "llama")
    of = recipe("adamw", steps=3 * STEPS)
    run = settings(model, corpus, of)
    run["timeouts"] = {"majority_s": 12.0}
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        leader = start(swarm)
        others = [swarm.start_peer(stage=stage) for stage in range(STAGES)]
        swarm.wait(lambda: sum(map(_with_all, swarm.steps("trainer-1"))) > 1, "a step opened with everybody", FINISH_S)
        kill_at_once([leader, *others])
        survivors = [process for process in swarm.processes if process.exit_code is None]
        swarm.wait(lambda: all(p.exit_code is not None for p in survivors), "the end of the run", FINISH_S)
        steps = swarm.steps("trainer-1")
    log = _log(swarm, "trainer-1")
    assert "most of the swarm stayed away: going on without it, as lineage" in log
    assert "back from version" not in log, "no step is lost"
    assert [step["step"] for step in steps] == list(range(3 * STEPS))
    assert_learnt(parameters(load_model(swarm.output / "final")), model, corpus, of)


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
def test_one_trainer_with_one_peer_waits_for_no_majority(tmp_path: Path, forks: ForkServer) -> None:
    model, corpus = prepare(tmp_path, "llama")
    of = recipe("adamw", steps=STEPS)
    with LocalSwarm(tmp_path / "swarm", settings(model, corpus, of, stages=1), forks=forks) as swarm:
        swarm.start_trainer()
        only = swarm.start_peer()
        swarm.wait(lambda: len(swarm.steps()) > 2, "a few steps", FINISH_S)
        only.kill()
        swarm.start_peer()
        swarm.wait(lambda: swarm.processes[0].exit_code is not None, "the end of the run", FINISH_S)
    assert "most of the swarm" not in _log(swarm, "trainer-0")
    assert_learnt(parameters(load_model(swarm.output / "final")), model, corpus, of)


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
def test_a_trainer_that_nobody_knows_yet_joins_whoever_leads_now(tmp_path: Path, forks: ForkServer) -> None:
    """The heir has the claim to the output, however long the former leader takes to end: there is one lineage."""
    model, corpus = prepare(tmp_path, "llama")
    of = recipe("adamw", steps=400)
    with LocalSwarm(tmp_path / "swarm", settings(model, corpus, of), forks=forks) as swarm:
        leader = start(swarm)
        swarm.wait(lambda: swarm.steps("trainer-1"), "a step that the second trainer knows of", FINISH_S)
        leader.send(signal.SIGSTOP)
        swarm.wait(lambda: "leading from here on" in _log(swarm, "trainer-1"), "an heir", FINISH_S)
        leader.send(signal.SIGCONT)
        swarm.wait(lambda: "joining again" in _log(swarm, "trainer-0"), "the former leader to give way", FINISH_S)
        leader.kill()
        claim = swarm.output / "state" / "leader.lock"
        swarm.wait(lambda: _is_held(claim), "the heir's claim", FINISH_S)
        swarm.start_trainer(beside=True)
        swarm.wait(lambda: "joined; " in _log(swarm, "trainer-2"), "the third trainer to join", FINISH_S)
        assert "resuming" not in _log(swarm, "trainer-2")


def _with_all(step: dict[str, Any]) -> bool:
    """Whether two peers of each stage took part in a step's update, and so in all of the next one."""
    return bool(sum(step["peers"]) == 2 * STAGES)


def _log(swarm: LocalSwarm, name: str) -> str:
    return (swarm.folder / f"{name}.log").read_text(encoding="utf-8")


def _is_held(path: Path) -> bool:
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
