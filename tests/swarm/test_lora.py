"""Adapters that a swarm trains under deaths are those that peft trains in one process, on the same frozen weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from peft import inject_adapter_in_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from swarmflow.chaos.compare import order_limits
from swarmflow.compute.adapters import draw_adapters, is_adapter, peft_config, stored_name
from swarmflow.compute.nf4 import dequantize, quantize
from swarmflow.finetuning import Lora
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from tests.swarm.reference import relative_difference, train
from tests.swarm.runs import FINISH_S, LONG, STAGES, learnt_by_all, prepare, recipe, settings, start
from tests.swarm.test_delay import plain_loop

pytestmark = [pytest.mark.swarm, pytest.mark.slow]

LORA = Lora(rank=4, alpha=8)


def adapt(model: PreTrainedModel) -> None:
    """Give a model adapters by peft, with the first values of the swarm's."""
    inject_adapter_in_model(peft_config(model, "model.layers", LORA), model)
    draw_adapters(((name, value.data) for name, value in model.named_parameters() if is_adapter(name)), seed=0)


def quantize_and_adapt(model: PreTrainedModel) -> None:
    """The same on the numbers that 4 bits have of the matrices of linear layers of the blocks."""
    for name, value in model.named_parameters():
        if name.startswith("model.layers.") and value.ndim == 2:
            value.data.copy_(dequantize(*quantize(value), value.shape, value.dtype))
    adapt(model)


def by_peft(
    model: Path,
    corpus: Path,
    steps: int,
    change: Callable[[PreTrainedModel], None],
    delay: int = 0,
    *,
    reverse: bool = False,
) -> dict[str, Tensor]:
    """Return the adapters that peft trains in this process, by the names of its files."""
    of = recipe("adamw", steps=steps)
    if delay:
        learnt, _ = plain_loop(model, corpus, of, "none", change, reverse=reverse)
    else:
        learnt, _ = train(model, corpus, of, change=change, reverse=reverse)
    return {stored_name(name): value for name, value in learnt.items() if is_adapter(name)}


def spoil(folder: Path) -> None:
    """Change all weights of a folder in the place where a process has them mapped."""
    [file] = folder.glob("*.safetensors")
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 4)
        opened.write(b"\x3c" * (file.stat().st_size - file.stat().st_size // 4))


@pytest.mark.parametrize(
    ("base", "delay"),
    [
        ("fp32", 0),
        pytest.param("4bit", 0, marks=pytest.mark.extended),
        pytest.param("fp32", 1, marks=pytest.mark.extended),
    ],
)
def test_adapters_under_deaths_are_those_of_peft(base: str, delay: int, tmp_path: Path, forks: ForkServer) -> None:
    """A newcomer takes frozen weights from a peer, and who starts again its own: the trainer has others by then."""
    model, corpus = prepare(tmp_path, "llama")
    given = Path(shutil.copytree(model, tmp_path / "given"))
    run = settings(given, corpus, recipe("adamw", steps=LONG))
    run["finetune"] = {"lora": {"rank": LORA.rank, "alpha": LORA.alpha}, "base": base}
    run["train"] |= {"checkpoint_every": 2, "delay": delay}
    run["run"]["keep_exports"] = 0
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        start(swarm, trainers=1, peers=2 * STAGES)
        swarm.wait(lambda: [2, 2, 2] in (step["peers"] for step in swarm.steps()) or None, "all peers", FINISH_S)
        spoil(given)
        for victim in (swarm.peers[1], swarm.peers[5]):
            swarm.wait_steps(len(swarm.steps()) + 1, FINISH_S)
            victim.kill()
        seen = len(swarm.steps())
        again = swarm.start_again(swarm.peers[1])
        swarm.start_peer(stage=2)
        swarm.wait(lambda: [2, 2, 2] in (step["peers"] for step in swarm.steps()[seen:]) or None, "newcomers", FINISH_S)
        version = learnt_by_all(swarm, [2, 2, 2])
        assert "need not be fetched" in again.log.read_text(encoding="utf-8")
    found = load_file(swarm.output / f"step-{version}" / "adapter_model.safetensors")
    change = adapt if base == "fp32" else quantize_and_adapt
    wanted = by_peft(model, corpus, version, change, delay)
    limits = order_limits(wanted, by_peft(model, corpus, version, change, delay, reverse=True))
    far = {name: d for name, d in relative_difference(found, wanted).items() if not d <= limits[name]}
    assert far == {}, f"limits {limits}"
