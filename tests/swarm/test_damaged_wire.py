"""Bits that flip on the wire between real processes are found and named, and what is learnt has none of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from swarmflow.chaos.sabotage import garble, has_garbled
from swarmflow.compute.codec import codec_named
from swarmflow.compute.flat import rounding_of
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm, environment
from swarmflow.runtime.transport.hello import LaneName
from swarmflow.runtime.transport.identity import load_identity
from tests.swarm.reference import load_model, parameters
from tests.swarm.runs import FINISH_S, LONG, exported, prepare, recipe, settings
from tests.swarm.test_bit_exact import AS_THE_LOOP, CUT, _bytes, alone

WAIT_S = 60.0
STAYS = ("--rebalance-period", "0", *AS_THE_LOOP)
FOUND = "refused a frame (damaged_body): a body was damaged on the way"


def named(swarm: LocalSwarm, sender: LocalProcess, among: list[LocalProcess]) -> bool:
    """Whether one of these processes has named the sender of a damaged body in its log."""
    name = load_identity(swarm.state_folder(sender.name) / "identity.key").name[-6:]
    lines = [line for process in among for line in process.log.read_text(encoding="utf-8").splitlines()]
    return any(f"from {name}." in line and FOUND in line for line in lines)


def damage(swarm: LocalSwarm, sender: LocalProcess, lane: LaneName) -> None:
    """Has a body of a process damaged on its way, and waits until its receiver has named the process."""
    others = [process for process in swarm.processes if process is not sender]
    assert not named(swarm, sender, others)
    garble(swarm.state_folder(sender.name), lane)
    if lane == "background":
        others.append(swarm.start_peer(*STAYS, stage=0))
    swarm.wait(partial(has_garbled, swarm.state_folder(sender.name)), f"{sender.name} to write {lane}", WAIT_S)
    swarm.wait(partial(named, swarm, sender, others), f"{sender.name} to be named", WAIT_S)


@pytest.mark.extended
@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_what_is_damaged_on_the_wire_is_named_and_repaired_and_no_bit_of_it_is_learnt(tmp_path: Path) -> None:
    """An activation, a gradient, a piece of an all-reduce, and a piece of the state that a newcomer loads."""
    model, corpus = prepare(tmp_path, "gpt2")
    of = recipe("adamw", steps=LONG)
    run = settings(model, corpus, of, stages=2)
    run["model"]["cut"] = list(CUT)
    run["train"] |= {"checkpoint_every": 10, "accumulate": "exact"}
    with (
        ForkServer(environment(threads=1), "swarmflow.chaos.sabotage") as forks,
        LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm,
    ):
        swarm.start_trainer()
        first, donor, last, summing = (swarm.start_peer(*STAYS, stage=stage) for stage in (0, 0, 1, 1))
        swarm.wait(lambda: [2, 2] in (step["peers"] for step in swarm.steps()), "a step with all peers", WAIT_S)
        damage(swarm, first, "bulk")
        damage(swarm, last, "bulk")
        damage(swarm, summing, "sums")
        damage(swarm, donor, "background")
        begun = len(swarm.steps())
        swarm.wait(lambda: swarm.steps()[-1]["peers"] == [3, 2], "the newcomer to take part", WAIT_S)
        version = swarm.wait(partial(exported, swarm.output, begun + 1), "a checkpoint after it", FINISH_S)
        steps = swarm.steps()[:version]
    assert [step["step"] for step in steps] == list(range(version))
    rounding = rounding_of("exact", "none", of.microbatches)
    assert rounding is not None
    wanted, norms = alone(model, corpus, replace(of, steps=version), lambda step: [codec_named("none")], rounding)
    assert [step["grad_norm"] for step in steps] == norms
    learnt = parameters(load_model(swarm.output / f"step-{version}"))
    assert {name: _bytes(value) for name, value in learnt.items()} == wanted
