"""With moments of 8 bits a swarm learns the bits of one process, whoever dies and however the model is cut."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from swarmflow.chaos.plain import load_model, microbatch, parameters
from swarmflow.compute.exact import FixedPoint
from swarmflow.compute.families import model_config
from swarmflow.compute.layout import OWN
from swarmflow.compute.optimizer import OptimizerSettings
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.weights import load_stage
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm, kill_at_once, toml_text
from tests.compute.eight_bits import Numbers, Twin
from tests.swarm.reference import Recipe
from tests.swarm.runs import FINISH_S, LONG, OPTIMIZERS, STAGES, prepare, recipe, settings
from tests.swarm.test_recut import end

CUT, OTHER_CUT = [1, 2], [2]
AFTERWARDS = 5  # steps with the other cut


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.usefixtures("one_thread")
def test_a_swarm_with_8_bit_moments_learns_the_bits_of_one_process(tmp_path: Path, forks: ForkServer) -> None:
    """A peer is killed and another one loads the state; then the run stops, and goes on with another cut.

    One peer of each stage has its state in the memory of the host.
    """
    model, corpus = prepare(tmp_path, "llama")
    run = settings(model, corpus, recipe("adamw", steps=LONG))
    run["model"]["cut"], run["train"]["accumulate"] = CUT, "exact"
    run["optimizer"] = {**OPTIMIZERS["adamw"], "state_bits": 8}
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        trainer = swarm.start_trainer()
        for number in range(2 * STAGES):
            swarm.start_peer("--state", ("device", "host")[number // STAGES], stage=number % STAGES)
        all_there(swarm, 0)
        swarm.peers[0].kill()
        swarm.start_peer("--state", "host", stage=0)
        all_there(swarm, len(swarm.steps()) + 1)
        end(swarm, trainer)
        kill_at_once(swarm.peers[2:6:3])  # those of the stage that there is no more
        done = len(swarm.steps())
        run["model"] |= {"stages": len(OTHER_CUT) + 1, "cut": OTHER_CUT}
        run["train"]["steps"] = done + AFTERWARDS
        swarm.run_file.write_text(toml_text(run), encoding="utf-8")
        swarm.start_again(trainer)
        swarm.wait_finished(FINISH_S)
        steps = swarm.steps()
    assert [step["step"] for step in steps] == list(range(done + AFTERWARDS))
    assert [len(step["peers"]) for step in steps] == [len(CUT) + 1] * done + [len(OTHER_CUT) + 1] * AFTERWARDS
    assert_stored_small(swarm)
    learnt = {name: value.numpy() for name, value in parameters(load_model(swarm.output / "final")).items()}
    wanted = alone(model, corpus, recipe("adamw", steps=len(steps)), [step["grad_norm"] for step in steps])
    assert {name: value.tobytes() for name, value in learnt.items()} == {n: v.tobytes() for n, v in wanted.items()}


def all_there(swarm: LocalSwarm, since: int) -> None:
    """Wait for a step that two peers of each stage share."""
    full = [2] * STAGES
    swarm.wait(lambda: full in [step["peers"] for step in swarm.steps()[since:]], "a step with all peers", FINISH_S)


def assert_stored_small(swarm: LocalSwarm) -> None:
    """The files of stages have moments of a byte a parameter."""
    files = list(swarm.state_folder("trainer-0").rglob("stage-*.safetensors"))
    assert files
    for path in files:
        with safe_open(path, framework="np") as file:
            assert file.get_tensor("own.exp_avg_codes").dtype == np.uint8
            elements = file.get_slice("own.params").get_shape()[0]
        assert path.stat().st_size < 0.52 * 12 * elements + 1000


def alone(model: Path, corpus: Path, of: Recipe, norms: list[float]) -> dict[str, Numbers]:
    """What one process learns that has the whole model. norms: those by which the swarm has clipped."""
    whole = build_stage(model_config(model), (), 0, device="cpu", rounding=FixedPoint(of.microbatches))
    load_stage(whole, model)
    runner, group, given = StageRunner(whole), whole.groups[OWN], of.optimizer
    betas = (given["betas"][0], given["betas"][1])
    chosen = OptimizerSettings(given["name"], betas, eps=given["eps"], weight_decay=given["weight_decay"], state_bits=8)
    twins = {slot: Twin(chosen, group.params[slot.offset : slot.stop].numpy()) for slot in group.entries}
    tokens = torch.frombuffer(bytearray(corpus.read_bytes()), dtype=torch.uint8).long()
    count = of.microbatches * of.sequences * of.seq_len
    for step, norm in enumerate(norms):
        for index in range(of.microbatches):
            runner.loss(index, *microbatch(tokens, of, step, index), number=step * of.microbatches + index)
        gradient = group.sums.gradient()[0 : group.sums.elements]
        assert math.sqrt(group.sums.sum_of_squares()) / count == pytest.approx(norm, rel=1e-14)
        scale = min(1.0, 1.0 / (norm + 1e-6)) / count
        for slot, twin in twins.items():
            twin.update(gradient[slot.offset : slot.stop].numpy(), scale, given["lr"], step)
            group.params[slot.offset : slot.stop] = torch.from_numpy(twin.params)
        whole.zero_grads()
    return {slot.name: twin.params.reshape(slot.shape) for slot, twin in twins.items()}
