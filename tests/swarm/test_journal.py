"""Peers that keep no bytes for repairs: deaths between completion and commit change no bit, and start no step over."""

from __future__ import annotations

import re
import signal
import urllib.request
from pathlib import Path

import pytest

from swarmflow.chaos.compare import compare_bits
from swarmflow.runtime.forkserver import ForkServer
from swarmflow.runtime.local import LocalProcess, LocalSwarm, environment
from tests.swarm import dying
from tests.swarm.reference import load_model, parameters
from tests.swarm.runs import FINISH_S, STAGES, prepare, recipe, settings

FOR_EVER = 100_000


@pytest.mark.swarm
@pytest.mark.slow
def test_what_nobody_has_kept_is_computed_again_to_the_bit(tmp_path: Path) -> None:
    model, corpus = prepare(tmp_path, "gpt2", corpus_bytes=1 << 14)
    run = settings(model, corpus, recipe("adamw", steps=FOR_EVER), codec="blockwise8")
    run["train"]["accumulate"] = "exact"
    with ForkServer(environment(threads=1), "tests.swarm.dying") as forks:
        with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
            trainer = swarm.start_trainer()
            for stage in (*range(STAGES), *range(STAGES)):
                swarm.start_peer("--journal-bytes-max", "0", "--metrics-port", "0", stage=stage)
            for victim in swarm.peers[:STAGES]:
                wait_for_all(swarm)
                die_before_the_all_reduce(swarm, victim)
                swarm.start_again(victim)
            wait_for_all(swarm)
            recomputed = [decisions(peer, "recomputations") for peer in swarm.peers[STAGES:]]
            trainer.send(signal.SIGINT)
            swarm.wait(lambda: trainer.exit_code is not None, "the trainer's end", FINISH_S)
            steps, log = swarm.steps(), trainer.log.read_text(encoding="utf-8")
        swarm.command("export", "--state-dir", str(swarm.state_folder("trainer-0")), "--out", str(tmp_path / "found"))
        run["train"]["steps"] = run["train"]["checkpoint_every"] = len(steps)
        with LocalSwarm(tmp_path / "undisturbed", run, forks=forks) as alone:
            alone.start_trainer()
            for stage in range(STAGES):
                alone.start_peer(stage=stage)
            alone.wait_finished(FINISH_S)
            wanted = alone.steps()
    assert log.count("is gone: ") == STAGES
    assert "starts over" not in log
    assert sum(recomputed) > 0
    for name in ("loss", "grad_norm"):
        assert [step[name] for step in steps] == [step[name] for step in wanted]
    found, undisturbed = (parameters(load_model(folder)) for folder in (tmp_path / "found", alone.output / "final"))
    comparison = compare_bits(found, undisturbed, "the undisturbed run")
    assert comparison.holds, str(comparison)


def wait_for_all(swarm: LocalSwarm) -> None:
    """A step is committed in which every peer took part."""
    before = len(swarm.steps())

    def everybody() -> bool:
        steps = swarm.steps()
        return len(steps) > before and steps[-1]["peers"] == [2] * STAGES

    swarm.wait(everybody, "a step of all peers", FINISH_S)


def die_before_the_all_reduce(swarm: LocalSwarm, victim: LocalProcess) -> None:
    """All its hops of the step are accumulated, and no byte of them is kept."""
    victim.expendable = True
    folder = swarm.state_folder(victim.name)
    dying.tell(folder, 0)
    assert swarm.wait(lambda: victim.exit_code, f"the death of {victim.name}", FINISH_S) == -signal.SIGKILL
    dying.forgive(folder)


def decisions(process: LocalProcess, kind: str) -> float:
    """swarmflow_decisions_total of a running process."""
    address = re.search(r"http://127\.0\.0\.1:\d+/metrics", process.log.read_text(encoding="utf-8"))
    assert address is not None
    with urllib.request.urlopen(address[0], timeout=10) as answer:
        text = answer.read().decode("utf-8")
    found = re.search(rf'^swarmflow_decisions_total\{{kind="{kind}"\}} (\S+)$', text, re.MULTILINE)
    assert found is not None
    return float(found[1])
