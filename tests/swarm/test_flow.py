"""Real processes whose microbatches follow negotiated flows learn what one process learns, through a death too."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm
from tests.swarm.reference import load_model, parameters
from tests.swarm.runs import FINISH_S, LONG, STAGES, exported, prepare, recipe, settings
from tests.swarm.test_exactness import assert_learnt

SPEAKS_S = 10.0
COUNTED = re.compile(r'swarmflow_routed_total\{by="flow"\} (\S+)')


def followed(process: LocalProcess) -> float:
    """Microbatches that it sent along a flow."""
    address = re.search(r"metrics: (http://\S+)", process.log.read_text(encoding="utf-8"))
    assert address is not None
    with urlopen(address[1], timeout=SPEAKS_S) as page:
        found = COUNTED.search(page.read().decode())
    return float(found[1]) if found else 0.0


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.parametrize("router", [pytest.param("flow", marks=pytest.mark.extended), "gwtf"])
def test_a_swarm_that_follows_flows_learns_what_one_process_learns(
    router: str, tmp_path: Path, forks: ForkServer
) -> None:
    """Compared are a version before a peer is killed, and one after it."""
    model, corpus = prepare(tmp_path, "llama")
    run = settings(model, corpus, recipe("adamw", steps=LONG))
    run["train"] |= {"router": router, "checkpoint_every": 8}
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        for _ in range(2):
            swarm.start_trainer("--metrics-port", "0")
        for number in range(2 * STAGES):
            swarm.start_peer("--metrics-port", "0", stage=number % STAGES)
        peers = swarm.peers
        swarm.wait_steps(1, FINISH_S)
        swarm.wait(lambda: followed(peers[0]) + followed(peers[3]) > 0, "a microbatch to follow a flow", FINISH_S)
        swarm.wait(lambda: sum(swarm.steps()[-1]["peers"]) == len(peers), "a step of all peers", FINISH_S)
        coming = len(swarm.steps()) + 1  # only the last exports are kept: an old one could vanish as it is read
        calm = swarm.wait(lambda: exported(swarm.output, coming), "a checkpoint before a death", FINISH_S)
        undisturbed = parameters(load_model(swarm.output / f"step-{calm}"))
        peers[4].kill()
        swarm.wait(lambda: sum(swarm.steps()[-1]["peers"]) < len(peers), "a step without the dead one", FINISH_S)
        least = len(swarm.steps()) + 1
        learnt = swarm.wait(lambda: exported(swarm.output, least), "a checkpoint after it", FINISH_S)
        steps = swarm.steps()[:learnt]
    assert_learnt(undisturbed, model, corpus, recipe("adamw", steps=calm))
    of = recipe("adamw", steps=learnt)
    assert [step["step"] for step in steps] == list(range(of.steps))
    assert {step["microbatches"] for step in steps} == {of.microbatches}
    losses = assert_learnt(parameters(load_model(swarm.output / f"step-{learnt}")), model, corpus, of)
    torch.testing.assert_close([step["loss"] for step in steps], losses, rtol=1e-5, atol=0)
