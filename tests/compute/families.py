"""Every family of families.toml, cut into stages and compared with transformers' own model.

`python -m tests.compute.families` writes the table in docs/families.md anew.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from swarmflow.compute.experts import balance_of
from swarmflow.compute.families import model_config
from swarmflow.compute.partition import check_family
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import Stage
from swarmflow.errors import ModelError
from tests.compute.models import batch, stages_of, whole_model

ROOT = Path(__file__).parents[2]
LISTED: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SIZES = LISTED.pop("sizes")
OF_TEST = ("refused", "extended")  # keys of an entry that are not of its configuration
PAGE = ROOT / "docs" / "families.md"
CUT = (1, 3)
TOLERANCE = 1e-4  # of the largest gradient, and of the loss
HEAD = """# Families of models

Every family of transformers' causal language models whose blocks are one list is cut and trained as it is, or refused
by name before a run begins. The table is generated (`python -m tests.compute.families`) by the test that cuts a tiny
model of each family into three stages and compares forward, loss and the gradient of every parameter with those of
transformers' own model: *equal* means within 1e-4 of the largest gradient.

*attention* is the implementation where `model.attention` names none. *experts*: of a mixture of experts, whether the
loss that balances them is compared too (`output_router_logits` and `router_aux_loss_coef` of the configuration):
*balanced* means so, *no loss* that transformers has none for the family.

| model type | attention | experts | outcome |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Outcome:
    """What became of a family. refusal: the error's line where it was refused."""

    attention: str = ""
    experts: str = ""
    loss_error: float = 0.0  # relative
    gradient_error: float = 0.0  # the largest of a parameter, relative to the largest gradient
    refusal: str = ""

    def row(self, name: str) -> str:
        """Return its row of the table."""
        reason = self.refusal.partition("are not supported: ")[2] or self.refusal
        outcome = f"refused: {reason}" if self.refusal else "equal"
        return f"| `{name}` | {self.attention or '-'} | {self.experts or '-'} | {outcome.replace('|', '/')} |\n"


def tiny(name: str) -> dict[str, Any]:
    """Return the tiny configuration of a family."""
    family = CONFIG_MAPPING[name]
    known = set(family().to_dict()) - set(family.attribute_map or {})
    sizes = {key: None if value == "none" else value for key, value in SIZES.items() if key in known}
    return {"model_type": name, **sizes, **{k: v for k, v in LISTED[name].items() if k not in OF_TEST}}


def outcome_of(name: str) -> Outcome:
    """Cut a family and compare it with transformers, in one thread: more of them take longer for such sizes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _compared(name)
    finally:
        torch.set_num_threads(before)


def _compared(name: str) -> Outcome:
    try:
        config = msgspec.json.decode(msgspec.json.encode(model_config(tiny(name))))  # as a run's manifest has it
        check_family(config)
    except ModelError as error:
        return Outcome(refusal=str(error))
    stages = stages_of(config, CUT)
    whole = whole_model(config, stages)
    loss, gradients = _in_stages(stages)
    wanted = _plain(whole)
    own = {key: torch.zeros_like(p) if p.grad is None else p.grad for key, p in whole.named_parameters()}
    largest = max(float(gradient.abs().max()) for gradient in own.values())
    apart = max(float((gradients[key] - gradient).abs().max()) for key, gradient in own.items())
    attention = str(whole.config._attn_implementation)
    return Outcome(attention, _experts(whole), abs(loss - wanted) / abs(wanted), apart / largest)


def _in_stages(stages: list[Stage]) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss, and the gradient of each parameter, by the runners of the stages as peers have them."""
    runners = [StageRunner(stage) for stage in stages]
    x, targets = batch()
    hidden = [x]
    for runner in runners[:-1]:
        hidden.append(runner.forward("m", hidden[-1]))
    loss, _, gradient = runners[-1].loss("m", hidden[-1], targets)
    for runner in reversed(runners[:-1]):
        assert gradient is not None
        gradient = runner.backward("m", gradient)
    found: dict[str, torch.Tensor] = {}
    for stage in stages:
        for name, _, grad in stage.named_parameters():
            assert grad is not None
            found[name] = found[name] + grad if name in found else grad.clone()
    return loss, found


def _plain(whole: PreTrainedModel) -> float:
    """Return the loss of the whole model, with its gradients computed."""
    x, targets = batch()
    output = whole(input_ids=x.long(), use_cache=False)
    logits = output.logits.flatten(0, 1).float()
    loss = torch.nn.functional.cross_entropy(logits, targets.flatten().long(), reduction="sum")
    if getattr(whole.config, "output_router_logits", False):  # as much for each token as transformers adds to the mean
        loss = loss + whole.router_aux_loss_coef * output.aux_loss * targets.numel()
    loss.backward()
    return float(loss.detach())


def _experts(whole: PreTrainedModel) -> str:
    if not any("experts" in name for name, _ in whole.named_modules()):
        return ""
    return "balanced" if balance_of(whole) is not None else "no loss"


def page() -> str:
    """Return docs/families.md."""
    return HEAD + "".join(outcome_of(name).row(name) for name in LISTED)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
