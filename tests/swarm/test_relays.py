"""Real processes that carry and sum for each other learn the very bits of those that do not, and survive deaths."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from swarmflow.chaos.compare import compare_bits
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm, environment
from tests.swarm import roundabout
from tests.swarm.reference import load_model, parameters
from tests.swarm.runs import FINISH_S, STAGES, prepare, recipe, settings

WANTED_S = 60.0
FOR_EVER = 100_000


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
def test_what_takes_detours_and_is_summed_by_others_is_learnt_to_the_bit(tmp_path: Path, forks: ForkServer) -> None:
    model, corpus = prepare(tmp_path, "llama")
    run = settings(model, corpus, recipe("sgd", steps=FOR_EVER))
    run["train"]["accumulate"] = "exact"
    with (
        ForkServer(environment(threads=1), "tests.swarm.roundabout") as busy,
        LocalSwarm(tmp_path / "swarm", run, forks=busy) as swarm,
    ):
        trainer = swarm.start_trainer()
        for number in range(2 * STAGES):
            swarm.start_peer(stage=number % STAGES)
        for what in (roundabout.CARRIED, roundabout.SUMMED):
            wait_for_one_that(swarm, what)
        victim = swarm.peers[0]
        victim.expendable = True
        victim.send(signal.SIGKILL)
        swarm.wait(lambda: victim.exit_code is not None, "its end", WANTED_S)
        swarm.start_again(victim)
        before = len(swarm.steps())
        swarm.wait(lambda: len(swarm.steps()) > before + 2, "steps after its end", WANTED_S)
        trainer.send(signal.SIGINT)
        swarm.wait(lambda: trainer.exit_code is not None, "the trainer's end", FINISH_S)
        steps = swarm.steps()
        swarm.command("export", "--state-dir", str(swarm.state_folder("trainer-0")), "--out", str(tmp_path / "found"))
    run["train"]["steps"] = run["train"]["checkpoint_every"] = len(steps)
    with LocalSwarm(tmp_path / "undisturbed", run, forks=forks) as alone:
        alone.start_trainer()
        for stage in range(STAGES):
            alone.start_peer(stage=stage)
        alone.wait_finished(FINISH_S)
        wanted = alone.steps()
    for name in ("loss", "grad_norm"):
        assert [step[name] for step in steps] == [step[name] for step in wanted]
    found, undisturbed = (parameters(load_model(of)) for of in (tmp_path / "found", alone.output / "final"))
    comparison = compare_bits(found, undisturbed, "the undisturbed run")
    assert comparison.holds, str(comparison)


def wait_for_one_that(swarm: LocalSwarm, what: str) -> None:
    """A peer leaves the file that says so."""
    folders = [swarm.state_folder(peer.name) for peer in swarm.peers]
    swarm.wait(lambda: any((folder / what).exists() for folder in folders), f"one that {what}", WANTED_S)
