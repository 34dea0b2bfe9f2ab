"""A swarm learns a network that is no language model, cut by its graph, as a plain loop does."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from tests.swarm.networks import collate, two_branches
from tests.swarm.runs import FINISH_S

WIDTH, ITEMS, MICROBATCHES, STEPS, STAGES = 16, 4, 4, 30, 3
RECORDS, HELD_OUT = 50, 10  # two microbatches, and two records that fill none
NAME = "tests.swarm.networks:two_branches"


def settings(folder: Path) -> dict[str, Any]:
    """RUN.toml, and the records that it names."""
    drawn = random.Random(0)
    records = [{"features": [drawn.gauss(0, 1) for _ in range(8)], "label": drawn.randrange(5)} for _ in range(RECORDS)]
    data, held_out = folder / "records.jsonl", folder / "held-out.jsonl"
    data.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    held_out.write_text("".join(f"{json.dumps(record)}\n" for record in records[:HELD_OUT]))
    return {
        "run": {"name": "test", "output": "out"},
        "model": {"module": NAME, "module_config": {"width": WIDTH}, "stages": STAGES},
        "data": {"path": str(data), "collate": "tests.swarm.networks:collate", "validation_path": str(held_out)},
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.1},
        "train": {
            "steps": STEPS,
            "microbatches": MICROBATCHES,
            "microbatch_sequences": ITEMS,
            "codec": "none",
            "reduce_codec": "none",
            "checkpoint_every": STEPS,
            "validate_every": STEPS,
        },
    }


def plain_loop(records: list[dict[str, Any]]) -> tuple[dict[str, Tensor], list[float], float]:
    """The parameters after all steps, the loss of each, and that of the held-out records after all."""
    torch.manual_seed(0)
    module = two_branches(WIDTH)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for index in range(MICROBATCHES):
            first = (step * MICROBATCHES + index) * ITEMS
            batch = collate([records[(first + place) % len(records)] for place in range(ITEMS)])
            loss = module(**batch)["loss"]
            loss.backward()
            total += float(loss.detach())
        count = MICROBATCHES * ITEMS
        with torch.no_grad():
            for parameter in module.parameters():
                assert parameter.grad is not None
                parameter.grad /= count
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(total / count)
    with torch.no_grad():
        held_out = [float(module(**collate(records[first : first + ITEMS]))["loss"]) for first in (0, ITEMS)]
    learnt = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return learnt, losses, sum(held_out) / (2 * ITEMS)


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_swarm_learns_a_network_of_two_branches_whoever_dies(tmp_path: Path, forks: ForkServer) -> None:
    run = settings(tmp_path)
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        swarm.start_trainer()
        for number in range(2 * STAGES):
            swarm.start_peer("--trust-module", NAME, stage=number % STAGES)
        stranger = swarm.start_peer(stage=0)
        stranger.expendable = True
        swarm.wait(lambda: stranger.exit_code, "the end of a peer that does not trust the module", FINISH_S)
        assert f"add --trust-module {NAME}" in stranger.log.read_text()
        swarm.wait_steps(8, FINISH_S)
        swarm.peers[1].kill()
        swarm.wait_finished(FINISH_S)
        steps = swarm.steps()
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    wanted, losses, held_out = plain_loop(records)
    found: dict[str, Tensor] = {}
    for file in sorted((swarm.output / "final").glob("*.safetensors")):
        found |= load_file(file)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)
    torch.testing.assert_close([step["loss"] for step in steps], losses, rtol=1e-5, atol=0)
    assert steps[-1]["validation_loss"] == pytest.approx(held_out, rel=1e-4)
    assert {sum(step["peers"]) for step in steps} >= {2 * STAGES - 1}
    described = json.loads((swarm.output / "final" / "module.json").read_text())
    assert described == {"module": NAME, "module_config": {"width": WIDTH}}
