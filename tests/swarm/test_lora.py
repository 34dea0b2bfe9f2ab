"""Adapters that a swarm trains under deaths are those that peft trains in one process, on the same frozen weights."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import pytest
from peft import inject_adapter_in_model
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from swarmflow.chaos.compare import order_limits
from swarmflow.compute.adapters import draw_adapters, dropouts_of_adapters, is_adapter, peft_config, stored_name
from swarmflow.compute.dropout import DrawKey, SeededDropout
from swarmflow.compute.nf4 import dequantize, quantize
from swarmflow.finetuning import Lora
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from tests.swarm.reference import relative_difference, train
from tests.swarm.runs import FINISH_S, LONG, STAGES, learnt_by_all, prepare, recipe, settings, start
from tests.swarm.test_delay import plain_loop

pytestmark = [pytest.mark.swarm, pytest.mark.slow]

LORA = Lora(rank=4, alpha=8)
DROPPING = Lora(rank=4, alpha=8, dropout=0.2)
SEED = 0

# What is done with the model before it is trained, and whether the microbatches of a step come the other way round.
Change = Callable[[PreTrainedModel, bool], None]


def adapt(model: PreTrainedModel, reverse: bool, lora: Lora = LORA) -> None:
    """Give a model adapters by peft, with the first values of the swarm's."""
    inject_adapter_in_model(peft_config(model, "model.layers", lora), model)
    draw_adapters(((name, value.data) for name, value in model.named_parameters() if is_adapter(name)), SEED)


def quantize_and_adapt(model: PreTrainedModel, reverse: bool) -> None:
    """The same on the numbers that 4 bits have of the matrices of linear layers of the blocks."""
    for name, value in model.named_parameters():
        if name.startswith("model.layers.") and value.ndim == 2:
            value.data.copy_(dequantize(*quantize(value), value.shape, value.dtype))
    adapt(model, reverse)


def adapt_and_drop(model: PreTrainedModel, reverse: bool) -> None:
    """Give it adapters that drop, in one pass after another, what those of the swarm do."""
    adapt(model, reverse, DROPPING)
    masks, passes, count = SeededDropout(dropouts_of_adapters), itertools.count(), recipe("adamw").microbatches
    entered = contextlib.ExitStack()
    masks.watch(model, enumerate(cast("Iterable[nn.Module]", model.get_submodule("model.layers"))))
    masks.set_active(on=True)

    def begin(model: nn.Module, args: object) -> None:
        step, index = divmod(next(passes), count)
        entered.enter_context(masks.begin(DrawKey(SEED, step, count - 1 - index if reverse else index)))

    model.register_forward_pre_hook(begin)
    model.register_forward_hook(lambda model, args, output: entered.close())


def by_peft(
    model: Path, corpus: Path, steps: int, change: Change, delay: int = 0, *, reverse: bool = False
) -> dict[str, Tensor]:
    """Return the adapters that peft trains in this process, by the names of its files."""
    of = recipe("adamw", steps=steps)
    if delay:
        learnt, _ = plain_loop(model, corpus, of, "none", lambda model: change(model, reverse), reverse=reverse)
    else:
        learnt, _ = train(model, corpus, of, change=lambda model: change(model, reverse), reverse=reverse)
    return {stored_name(name): value for name, value in learnt.items() if is_adapter(name)}


def spoil(folder: Path) -> None:
    """Change all weights of a folder in the place where a process has them mapped."""
    [file] = folder.glob("*.safetensors")
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 4)
        opened.write(b"\x3c" * (file.stat().st_size - file.stat().st_size // 4))


@pytest.mark.parametrize(
    ("base", "delay", "change"),
    [
        ("fp32", 0, adapt),
        pytest.param("4bit", 0, quantize_and_adapt, marks=pytest.mark.extended),
        pytest.param("fp32", 1, adapt, marks=pytest.mark.extended),
        pytest.param("fp32", 0, adapt_and_drop, marks=pytest.mark.extended),
    ],
)
def test_adapters_under_deaths_are_those_of_peft(
    base: str, delay: int, change: Change, tmp_path: Path, forks: ForkServer
) -> None:
    """A newcomer takes frozen weights from a peer, and who starts again its own: the trainer has others by then."""
    model, corpus = prepare(tmp_path, "llama")
    given = Path(shutil.copytree(model, tmp_path / "given"))
    run = settings(given, corpus, recipe("adamw", steps=LONG))
    dropout = DROPPING.dropout if change is adapt_and_drop else 0.0
    run["finetune"] = {"lora": {"rank": LORA.rank, "alpha": LORA.alpha, "dropout": dropout}, "base": base}
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
    wanted = by_peft(model, corpus, version, change, delay)
    limits = order_limits(wanted, by_peft(model, corpus, version, change, delay, reverse=True))
    far = {name: d for name, d in relative_difference(found, wanted).items() if not d <= limits[name]}
    assert far == {}, f"limits {limits}"
