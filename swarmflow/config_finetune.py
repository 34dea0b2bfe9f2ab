"""[finetune] of RUN.toml: adapters that are trained beside frozen weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from swarmflow import config_check as check
from swarmflow.finetuning import ALL_LINEAR, Lora


@dataclass(frozen=True, kw_only=True)
class FinetuneSection:
    """[finetune]: adapters that are trained beside frozen weights, those of model.path.

    lora: a table with rank, alpha, targets and, if not 0, dropout; None: all weights are trained. base: of the frozen
    weights; None: as train.precision.
    """

    lora: Annotated[Mapping[str, object] | None, check.lora] = None
    base: Annotated[str | None, check.choice("fp32", "bf16", "4bit")] = None

    def adapters(self, precision: str) -> Lora | None:
        """Return the adapters, if there are some. precision: of [train]."""
        if self.lora is None:
            return None
        names = [] if self.lora["targets"] == ALL_LINEAR else self.lora["targets"]
        how = {"half": precision == "bf16", "quantized": self.base == "4bit"}
        return Lora.of_json({**self.lora, "targets": names, **how})


class FinetunedModel(Protocol):
    """What [finetune] has to know of [model]."""

    @property
    def path(self) -> Path | None: ...
    @property
    def shared_blocks(self) -> int | None: ...
    @property
    def boundary(self) -> str | None: ...


def finetune_problems(section: FinetuneSection, model: FinetunedModel, precision: str) -> list[str]:
    """Return what [finetune] lacks in other sections, a line each. precision: of [train]."""
    base = section.base
    if section.lora is None:
        return [] if base is None else [f'finetune.base = "{base}": goes only with finetune.lora']
    problems: list[str] = []
    if model.path is None:
        problems.append("finetune.lora is given: needs model.path, a folder with the weights to be fine-tuned")
    for name, value in (("shared_blocks", model.shared_blocks), ("boundary", model.boundary)):
        if value is not None:
            problems.append(f"finetune.lora is given: goes without model.{name}, which changes the frozen weights")
    if base not in (None, "4bit", precision):
        problems.append(
            f'finetune.base = "{base}": train.precision is "{precision}"; take "{precision}" or "4bit", or set both'
        )
    return problems
