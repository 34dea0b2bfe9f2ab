"""A fork server whose peers compute values that are not finite, while a file in their state folder says so.

For `swarmflow chaos` and the tests alone: ForkServer(environment, "swarmflow.chaos.spoiling") starts ordinary
processes in which a stage's runner is spoilt; peers that are started in another way import nothing of it.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, Final, Literal

from torch import Tensor

from swarmflow.compute import runner
from swarmflow.compute.device_work import LossSum
from swarmflow.compute.runner import StageRunner
from swarmflow.local import forkserver

What = Literal["activation", "gradient", "sum"]
_FILE: Final = "spoil"


def spoil(state_folder: Path, what: What) -> None:
    """Let the peer with this state folder compute such values that are not finite from now on.

    activation: outputs, and on the last stage losses. gradient: of its input, on any stage but the first. sum: of
    parameters, which in fp32 no process detects before the step's end.
    """
    state_folder.mkdir(parents=True, exist_ok=True)
    part = state_folder / f"{_FILE}.part"
    part.write_text(what, encoding="utf-8")
    part.replace(state_folder / _FILE)


def forgive(state_folder: Path) -> None:
    """Let it compute finite values again."""
    (state_folder / _FILE).unlink(missing_ok=True)


def _chosen() -> str:
    path = Path(sys.argv[sys.argv.index("--state-dir") + 1]) / _FILE
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _broken(value: Tensor, what: What) -> Tensor:
    return value * math.nan if _chosen() == what else value


class _Spoilt(StageRunner):
    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401  # handed on as they are
        super().__init__(*given, **named)
        unit = self.stage.units[self.stage.block_names[0]]
        next(unit.parameters()).register_hook(lambda gradient: _broken(gradient, "sum"))

    def _forward(self, *given: Any) -> tuple[Tensor | None, Tensor]:  # noqa: ANN401
        leaf, output = super()._forward(*given)
        return leaf, _broken(output, "activation")

    def _loss(self, *given: Any) -> tuple[LossSum, int, Tensor | None]:  # noqa: ANN401
        total, tokens, gradient = super()._loss(*given)
        return total, tokens, None if gradient is None else _broken(gradient, "gradient")

    def backward(self, *given: Any, **named: Any) -> Tensor | None:  # noqa: ANN401
        gradient = super().backward(*given, **named)
        return None if gradient is None else _broken(gradient, "gradient")


def prepare() -> None:
    """Run a fork server whose processes have runners that can be spoilt."""
    setattr(runner, "StageRunner", _Spoilt)  # noqa: B010  # the role takes it from there, once it is needed


if __name__ == "__main__":
    prepare()
    forkserver.main()
