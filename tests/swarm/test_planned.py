"""Real processes that are placed by a plan of their links learn what one process learns, and can be planned for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from tests.swarm.reference import load_model, parameters
from tests.swarm.runs import FINISH_S, LONG, STAGES, exported, prepare, recipe, settings
from tests.swarm.test_exactness import assert_learnt


@pytest.mark.swarm
@pytest.mark.slow
def test_peers_come_to_the_planned_stages_and_learn_what_one_process_learns(tmp_path: Path, forks: ForkServer) -> None:
    """All but the first peer of each stage measure their links first, and go where the plan has them."""
    model, corpus = prepare(tmp_path, "llama")
    run = settings(model, corpus, recipe("adamw", steps=LONG))
    run["train"] |= {"placement": "planned", "checkpoint_every": 8}
    plan = tmp_path / "plan.json"
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        trainer = swarm.start_trainer()
        for number in range(2 * STAGES):
            if number == STAGES:
                swarm.wait_steps(1, FINISH_S)
            swarm.start_peer()
        swarm.wait(lambda: swarm.steps() and sum(swarm.steps()[-1]["peers"]) == 2 * STAGES, "all peers", FINISH_S)
        told = swarm.command("plan", "--join", swarm.invite, "--json", str(plan))
        least = len(swarm.steps()) + 1
        learnt = swarm.wait(lambda: exported(swarm.output, least), "a checkpoint of all", FINISH_S)
        log = trainer.log.read_text(encoding="utf-8")
    assert STAGES <= len(re.findall(r"as planned by the links", log)) <= 2 * STAGES
    assert re.search(r"\d+ of 30 directions of links are measured", told)
    assert re.search(r"at present \S+ s; \S+ s if \d peers move", told)
    assert len(json.loads(plan.read_text(encoding="utf-8"))["plans"][0]["pipelines"]) == 2
    of = recipe("adamw", steps=learnt)
    assert_learnt(parameters(load_model(swarm.output / f"step-{learnt}")), model, corpus, of)
