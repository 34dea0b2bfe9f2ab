"""Examines a model before a run: whether its family can be cut, and what its parts cost and keep in memory.

`python -m swarmflow.compute.examine` does it in a process of its own for a trainer, which is not to grow with the
model: the question comes as JSON on standard input, the answer goes as JSON to standard output.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from swarmflow.boundary import Boundary
from swarmflow.compute.demands import Activations, measure_activations
from swarmflow.compute.families import one_line, to_config, unsupported
from swarmflow.compute.layout import stage_layout
from swarmflow.compute.partition import BlockCosts, check_dropout, check_family, few_blocks, measure_costs
from swarmflow.errors import ModelError

SMALL_PARAMETERS = 1 << 20  # of one block and the embedding: that much is examined here, without seconds of imports
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class ExamineRequest:
    """config: as from `model_config`. measure: the costs too. precision, dropout, boundary, positions: of the run."""

    config: dict[str, Any]
    measure: bool
    precision: str
    dropout: bool
    boundary: Boundary | None
    positions: bool


@dataclass(frozen=True)
class Examined:
    """What was found out. costs: seconds of the model's parts, if they were to be measured."""

    activations: Activations
    costs: BlockCosts | None


def examine(
    config: Mapping[str, Any],
    measure: bool,
    *,
    precision: str = "fp32",
    dropout: bool = False,
    boundary: Boundary | None = None,
    positions: bool = False,
) -> Examined:
    """Checks the family, and measures the model's parts. positions: documents share rows. Raises ModelError."""
    asked = ExamineRequest(dict(config), measure, precision, dropout, boundary, positions)
    if stage_layout(few_blocks(config)[0], (1,), 0).parameters <= SMALL_PARAMETERS:
        return _examine(asked)
    question = msgspec.json.encode(asked).decode()
    command = [sys.executable, "-m", "swarmflow.compute.examine"]
    try:
        done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ModelError(f"examining the model took more than {_TIMEOUT_S:.0f} s; give [model] cut") from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ModelError(f"the model could not be examined (exit code {done.returncode}): {reason}")
    answer = msgspec.json.decode(done.stdout, type=_Answer)
    if answer.examined is None:
        raise ModelError(answer.error)
    return answer.examined


@dataclass(frozen=True)
class _Answer:
    examined: Examined | None
    error: str = ""


def _examine(asked: ExamineRequest) -> Examined:
    check_family(asked.config)
    try:
        activations = measure_activations(
            asked.config, asked.precision, asked.dropout, asked.boundary, positions=asked.positions
        )
        if asked.dropout:
            check_dropout(asked.config)
        return Examined(activations, measure_costs(asked.config) if asked.measure else None)
    except ModelError:
        raise
    except Exception as error:  # any family fails in its own way
        how = f"train.precision = {asked.precision} and model.dropout = {str(asked.dropout).lower()}"
        raise unsupported(to_config(asked.config), f"with {how} they fail ({one_line(error)})") from error


def main() -> None:
    """Answer the question on standard input."""
    asked = msgspec.json.decode(sys.stdin.read(), type=ExamineRequest)
    try:
        answer = _Answer(_examine(asked))
    except ModelError as error:
        answer = _Answer(None, str(error))
    sys.stdout.write(msgspec.json.encode(answer).decode())


if __name__ == "__main__":
    main()
