"""Peers that keep no bytes for repairs: deaths between completion and commit change no bit, and start no step over."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from swarmflow.chaos.compare import compare_bits
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm, environment
from tests.swarm import dying
from tests.swarm.reference import load_model, parameters
from tests.swarm.runs import FINISH_S, STAGES, prepare, recipe, settings

STEPS = 40
FORGETFUL = ("--journal-bytes-max", "0")


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
def test_what_nobody_has_kept_is_computed_again_to_the_bit(tmp_path: Path) -> None:
    model, corpus = prepare(tmp_path, "gpt2", corpus_bytes=1 << 14)
    run = settings(model, corpus, recipe("adamw", steps=STEPS), codec="blockwise8")
    run["train"]["accumulate"] = "exact"
    with ForkServer(environment(threads=1), "tests.swarm.dying") as forks:
        with LocalSwarm(tmp_path / "undisturbed", run, forks=forks) as alone:
            alone.start_trainer()
            for stage in range(STAGES):
                alone.start_peer(stage=stage)
            alone.wait_finished(FINISH_S)
        with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
            trainer = swarm.start_trainer()
            peers = [swarm.start_peer(*FORGETFUL, stage=stage) for stage in (*range(STAGES), *range(STAGES))]
            swarm.wait(lambda: [2] * STAGES in (step["peers"] for step in swarm.steps()), "all peers", FINISH_S)
            for stage in (1, 0, 2):
                die_before_the_all_reduce(swarm, peers[stage])
            swarm.wait_finished(FINISH_S)
            log = trainer.log.read_text(encoding="utf-8")
    assert log.count("is gone: ") == STAGES
    assert "starts over" not in log
    assert sum(step["retries"] for step in swarm.steps()) >= STAGES, "the dead had hops to be done again"
    for name in ("loss", "grad_norm"):
        assert [step[name] for step in swarm.steps()] == [step[name] for step in alone.steps()]
    found, wanted = (parameters(load_model(folder / "final")) for folder in (swarm.output, alone.output))
    comparison = compare_bits(found, wanted, "the undisturbed run")
    assert comparison.holds, str(comparison)


def die_before_the_all_reduce(swarm: LocalSwarm, victim: LocalProcess) -> None:
    """All its hops of the step are accumulated then, and neither it nor anybody else has kept a byte of them."""
    victim.expendable = True
    dying.tell(swarm.state_folder(victim.name), 0)
    assert swarm.wait(lambda: victim.exit_code, f"the death of {victim.name}", FINISH_S) == -signal.SIGKILL
