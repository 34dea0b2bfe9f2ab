"""With `codec = "adatopk"` a swarm learns the very bits of one process that compresses as much at each step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from swarmflow.compute.exact import FixedPoint
from swarmflow.compute.topk import codec_of
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from tests.swarm.reference import load_model, parameters
from tests.swarm.runs import FINISH_S, LONG, exported, prepare, recipe, settings
from tests.swarm.test_bit_exact import AS_THE_LOOP, alone

CUT = (1, 2)
RATIO = 16.0


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_log_tells_all_that_one_process_needs_to_learn_the_same_bits(tmp_path: Path, forks: ForkServer) -> None:
    """A peer is killed amid the run: who computes its microbatches again sends the same bytes."""
    model, corpus = prepare(tmp_path, "gpt2")
    of = recipe("adamw", steps=LONG)
    run = settings(model, corpus, of, codec="adatopk", stages=3)
    run["model"]["cut"] = list(CUT)
    run["train"] |= {"checkpoint_every": 5, "accumulate": "exact", "compression_ratio": RATIO}
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        swarm.start_trainer()
        peers = [swarm.start_peer(*AS_THE_LOOP, stage=stage) for stage in (0, 0, 1, 1, 2, 2)]
        swarm.wait(lambda: [2, 2, 2] in (step["peers"] for step in swarm.steps()), "a step with all peers", FINISH_S)
        before = len(swarm.steps())
        peers[2].kill()
        swarm.wait(lambda: [2, 1, 2] in (s["peers"] for s in swarm.steps()[before:]), "a step without it", FINISH_S)
        least = len(swarm.steps()) + 1
        version = swarm.wait(lambda: exported(swarm.output, least), "a checkpoint after it", FINISH_S)
        steps = swarm.steps()[:version]
    learnt = {
        name: value.numpy().tobytes()
        for name, value in parameters(load_model(swarm.output / f"step-{version}")).items()
    }
    kept = [step["kept"] for step in steps]
    rounding = FixedPoint(of.microbatches)
    wanted, norms = alone(
        model,
        corpus,
        replace(of, steps=version),
        lambda step: [codec_of("adatopk", numbers) for numbers in kept[step]],
        rounding,
        cut=CUT,
    )
    assert min(map(min, kept)) == int(4 * 256 / RATIO / 2.016), "the slowest boundary has what is asked for"
    assert [step["grad_norm"] for step in steps] == norms
    assert learnt == wanted
