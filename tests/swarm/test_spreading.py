"""Peers that began on one stage spread while they train, and go where others have died; what is learnt is exact."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm
from tests.swarm.reference import load_model, parameters
from tests.swarm.runs import FINISH_S, prepare, recipe, settings
from tests.swarm.test_exactness import assert_learnt

STAGES = 2  # of three the middle one sends twice as much, and its peers stay where links limit a step
MOVABLE = 5
PERIOD_S = 2
FOR_EVER = 100_000


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
def test_peers_spread_by_themselves_and_fill_the_gaps(tmp_path: Path, forks: ForkServer) -> None:
    model, corpus = prepare(tmp_path, "llama")
    # Tensors that outweigh the sums of the all-reduce: else a stage may do best with one peer.
    of = recipe("adamw", steps=FOR_EVER, microbatches=16, sequences=8)
    run = settings(model, corpus, of, stages=STAGES)
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        trainer = swarm.start_trainer()
        # One of each stage stays there: else the last one might be told to move just as the others are killed.
        stay = [swarm.start_peer("--rebalance-period", "0", stage=stage) for stage in range(STAGES)]
        # Not before these serve: one of the others would stand in for stage 1, and be there without having moved.
        swarm.wait(lambda: min(serving(swarm)), "a step of those that stay", FINISH_S)
        for _ in range(MOVABLE):
            swarm.start_peer("--rebalance-period", str(PERIOD_S), stage=0)
        stage, victims = swarm.wait(lambda: gap(swarm, stay), "the peers to spread", FINISH_S)
        for victim in victims:
            victim.kill()
        since, survivors = len(swarm.steps()), STAGES + MOVABLE - len(victims)
        swarm.wait(lambda: sum(serving(swarm, since)) == survivors, "a step of all survivors", FINISH_S)
        swarm.wait(lambda: serving(swarm, since)[stage] >= 2, "another peer to move to them", FINISH_S)
        trainer.send(signal.SIGINT)
        swarm.wait(lambda: trainer.exit_code is not None, "the trainer's end", FINISH_S)
        steps, log = swarm.steps(), trainer.log.read_text(encoding="utf-8")
        swarm.command("export", "--state-dir", str(swarm.state_folder("trainer-0")), "--out", str(tmp_path / "found"))
    assert "rebalanced, " in log
    for text in ("starts over", "back from version"):
        assert text not in log, "no move and no death costs a step"
    assert {step["microbatches"] for step in steps} == {of.microbatches}
    assert_learnt(parameters(load_model(tmp_path / "found")), model, corpus, replace(of, steps=len(steps)))


def serving(swarm: LocalSwarm, since: int = 0) -> list[int]:
    """How many peers of each stage took part in the last step; 0 if that was not one from ``since`` on."""
    steps = swarm.steps()[since:]
    return list(steps[-1]["peers"]) if steps else [0] * STAGES


def gap(swarm: LocalSwarm, stay: list[LocalProcess]) -> tuple[int, list[LocalProcess]] | None:
    """Once all stages have two peers, a stage that has one without them, and these: two movable peers or fewer."""
    if min(serving(swarm)) < 2:
        return None
    movable = {stage: [peer for peer in peers_of(swarm, stage) if peer not in stay] for stage in range(STAGES)}
    few = [(stage, peers) for stage, peers in movable.items() if 0 < len(peers) <= 2]
    return max(few, key=lambda found: len(found[1]), default=None)


def peers_of(swarm: LocalSwarm, stage: int) -> list[LocalProcess]:
    """Those whose last word is that they serve this stage."""
    found = []
    for peer in swarm.peers:
        lines = [line for line in peer.log.read_text(encoding="utf-8").splitlines() if "serving stage" in line]
        if lines and f"serving stage {stage} from" in lines[-1]:
            found.append(peer)
    return found
