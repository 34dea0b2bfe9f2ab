"""Blocks that share their weights, on one stage or on several, learn what one block learns that is used again."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from swarmflow.chaos.compare import order_limits
from swarmflow.chaos.plain import write_model
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm, toml_text
from tests.swarm.reference import load_model, parameters, relative_difference, tiny_config, train
from tests.swarm.runs import FINISH_S, LONG, prepare, recipe, settings
from tests.swarm.test_recut import end

pytestmark = [pytest.mark.swarm, pytest.mark.slow, pytest.mark.extended]

MORE = 4  # steps with the second cut
GROUPS = ((0, 1, 2), (3, 4, 5))  # of the blocks


def become_one(model: PreTrainedModel) -> None:
    """Put the first block of each group in the place of the others, as in ALBERT."""
    blocks = model.get_submodule("transformer.h")
    assert isinstance(blocks, nn.ModuleList)
    for first, *others in GROUPS:
        for other in others:
            blocks[other] = blocks[first]


def equal_blocks(folder: Path) -> Path:
    """A folder that each process of the run, and the plain loop, begins from: the blocks of a group are equal."""
    config = tiny_config("gpt2")
    config.n_layer = 6
    write_model(config, folder)
    model = load_model(folder)
    for first, *others in GROUPS:
        kept = model.get_submodule(f"transformer.h.{first}").state_dict()
        for other in others:
            model.get_submodule(f"transformer.h.{other}").load_state_dict(kept)
    model.save_pretrained(folder)
    return folder


def go_on(swarm: LocalSwarm, trainer: LocalProcess, run: dict[str, Any], cut: list[int]) -> LocalProcess:
    """End the trainer as its user does, and start it again with another cut, for a few steps."""
    end(swarm, trainer)
    run["model"] |= {"stages": len(cut) + 1, "cut": cut}
    run["train"]["steps"] = len(swarm.steps()) + MORE
    swarm.run_file.write_text(toml_text(run), encoding="utf-8")
    return swarm.start_again(trainer)


def assert_learnt(found: dict[str, Tensor], model: Path, corpus: Path, steps: int) -> None:
    of = recipe("adamw", steps=steps)
    wanted, _ = train(model, corpus, of, change=become_one)
    limits = order_limits(wanted, train(model, corpus, of, change=become_one, reverse=True)[0])
    far = {n: d for n, d in relative_difference({n: found[n] for n in wanted}, wanted).items() if not d <= limits[n]}
    assert far == {}, f"limits {limits}"
    for first, *others in GROUPS:
        for name in (name for name in found if f".h.{first}." in name):
            assert all(torch.equal(found[name.replace(f".{first}.", f".{n}.", 1)], found[name]) for n in others)


def test_blocks_of_several_stages_and_of_one_learn_as_one_block(tmp_path: Path, forks: ForkServer) -> None:
    """The middle one of three stages has no weights of its own, and after a new cut each stage has its group."""
    _, corpus = prepare(tmp_path, "gpt2")
    model = equal_blocks(tmp_path / "equal")
    run = settings(model, corpus, recipe("adamw", steps=LONG))
    run["model"] |= {"cut": [2, 4], "shared_blocks": len(GROUPS)}
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        trainer = swarm.start_trainer()
        for _ in range(6):
            swarm.start_peer()
        swarm.wait(lambda: [2, 2, 2] in (step["peers"] for step in swarm.steps()) or None, "all peers", FINISH_S)
        swarm.wait_steps(len(swarm.steps()) + 1, FINISH_S)
        swarm.peers[1].send(signal.SIGKILL)
        swarm.wait_steps(len(swarm.steps()) + 2, FINISH_S)
        go_on(swarm, trainer, run, [3])
        swarm.wait_finished(FINISH_S)
        assert {tuple(map(bool, step["peers"])) for step in swarm.steps()} == {(True,) * 3, (True,) * 2}
        assert_learnt(parameters(load_model(swarm.output / "final")), model, corpus, len(swarm.steps()))
