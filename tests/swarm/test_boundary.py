"""A swarm whose boundaries are learnt learns what a plain loop over the same architecture learns, whoever dies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.step_bytes import HOPS, sent
from swarmflow.chaos.compare import order_limits
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from tests.swarm.boundary_twin import Twin, exported, train
from tests.swarm.reference import Recipe, relative_difference
from tests.swarm.runs import FINISH_S, STAGES, prepare, recipe, settings

CUT = (1, 2)
STEPS, KILLED_AFTER = 12, 4
HIDDEN = 32
# Where two features of a window are as large but for the last digit, either may be the largest, and get the gradient of
# that token. A microbatch that is missing in one step makes thirty times the difference.
NEAR_TIE = 3e-3


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("family", "boundary"), [("llama", "bottleneck:8"), pytest.param("gpt2", "maxout:4", marks=pytest.mark.extended)]
)
def test_the_swarm_learns_what_a_plain_loop_learns(
    family: str, boundary: str, tmp_path: Path, forks: ForkServer
) -> None:
    """A quarter of the numbers travels, the weights of the folder and new layers are trained, and validation works."""
    model, corpus = prepare(tmp_path, family)
    of = recipe("adamw", steps=STEPS)
    run = settings(model, corpus, of)
    run["model"] |= {"cut": list(CUT), "boundary": boundary}
    run["data"]["validation_path"] = str(corpus)
    run["train"]["validate_every"] = STEPS
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        swarm.start_trainer()
        for number in range(2 * STAGES):
            swarm.start_peer("--metrics-port", "0", stage=number % STAGES)
        swarm.wait_steps(KILLED_AFTER, FINISH_S)
        before = len(swarm.steps())
        sent_bytes = sum(sum(sent(peer)[kind] for kind in HOPS) for peer in swarm.peers)
        begun = len(swarm.steps()) + 1  # steps went on while one peer after the other was asked
        swarm.peers[1].kill()
        swarm.wait_finished(FINISH_S)
        steps = swarm.steps()
        log = swarm.trainers[0].log.read_text(encoding="utf-8")
        found = exported(swarm.output / "final")
    whole_bytes = 4 * of.sequences * of.seq_len * HIDDEN * of.microbatches * 2 * len(CUT)  # in a step
    assert before * whole_bytes / 4 * 0.8 < sent_bytes < begun * whole_bytes / 2
    assert "transformers cannot load them" in log
    assert json.loads((swarm.output / "final" / "stages.json").read_text())["boundary"] == boundary
    twin = Twin(model, boundary, CUT)
    wanted, losses = train(twin, corpus, of)
    limits = order_limits(wanted, train(Twin(model, boundary, CUT), corpus, of, reverse=True)[0])
    least = NEAR_TIE if boundary.startswith("maxout") else 0.0
    far = {name: d for name, d in relative_difference(found, wanted).items() if not d <= max(limits[name], least)}
    assert far == {}, f"limits {limits}"
    torch.testing.assert_close([step["loss"] for step in steps], losses, rtol=1e-5, atol=0)
    assert steps[-1]["validation_loss"] == pytest.approx(validation_loss(twin, corpus, of), rel=1e-4)


def validation_loss(twin: Twin, corpus: Path, of: Recipe) -> float:
    """The mean loss over all sequences of a file."""
    tokens = torch.frombuffer(bytearray(corpus.read_bytes()), dtype=torch.uint8).long()
    sequences = (len(tokens) - 1) // of.seq_len
    rows = [tokens[number * of.seq_len : (number + 1) * of.seq_len + 1] for number in range(sequences)]
    whole = torch.stack(rows)
    with torch.no_grad():
        return float(twin.loss(whole[:, :-1], whole[:, 1:])) / (sequences * of.seq_len)
