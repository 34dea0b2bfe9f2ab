"""Examines a model before a run: whether its family can be cut, and what its parts cost.

`python -m swarmflow.compute.examine` does it in a process of its own for a trainer, which is not to grow with the
model: the question comes as JSON on standard input, the answer goes as JSON to standard output.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from swarmflow.compute.families import shrink
from swarmflow.compute.layout import stage_layout
from swarmflow.compute.partition import Costs, check_family, measure_costs
from swarmflow.errors import ModelError

SMALL_PARAMETERS = 1 << 20  # of one block and the embedding: that much is examined here, without seconds of imports
_TIMEOUT_S = 600.0


def examine(config: Mapping[str, Any], measure: bool) -> Costs | None:
    """Checks the family; the costs of the model's parts, if they are to be measured. Raises ModelError."""
    if stage_layout(shrink(config, 2), (1,), 0).parameters <= SMALL_PARAMETERS:
        return _examine(config, measure)
    question = json.dumps({"config": dict(config), "measure": measure})
    command = [sys.executable, "-m", "swarmflow.compute.examine"]
    try:
        done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ModelError(f"examining the model took more than {_TIMEOUT_S:.0f} s; give [model] cut") from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ModelError(f"the model could not be examined (exit code {done.returncode}): {reason}")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise ModelError(answer["error"])
    return Costs(**answer["costs"]) if answer["costs"] is not None else None


def _examine(config: Mapping[str, Any], measure: bool) -> Costs | None:
    check_family(config)
    return measure_costs(config) if measure else None


def main() -> None:
    """Answer the question on standard input."""
    question = json.load(sys.stdin)
    try:
        costs = _examine(question["config"], question["measure"])
        answer: dict[str, object] = {"costs": asdict(costs) if costs is not None else None}
    except ModelError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
