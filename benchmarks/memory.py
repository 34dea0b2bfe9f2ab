"""Peak memory of running processes, as Linux counts it, and what a stage's tensors take."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FLOAT_BYTES = 4
# Weights, gradients and AdamW's two moments.
COPIES_ADAMW = 4


class PeakMemory:
    """Keeps the highest VmHWM seen of some processes and of their children; `sample` now and then while they run."""

    def __init__(self) -> None:
        self.own_bytes: dict[str, int] = {}
        self.children_bytes: dict[str, int] = {}

    def sample(self, processes: Iterable[tuple[str, int]]) -> None:
        """processes: (name, process id). One that has ended keeps its last figure."""
        for name, pid in processes:
            self.own_bytes[name] = max(self.own_bytes.get(name, 0), _peak_bytes(pid))
            below = sum(_peak_bytes(child) for child in _children(pid))
            self.children_bytes[name] = max(self.children_bytes.get(name, 0), below)


def stage_bytes(config: dict[str, Any], cut: tuple[int, ...], stage: int, shape: tuple[int, int], held: int) -> int:
    """Bytes of a stage's fp32 weights, gradients, AdamW state and of the activations of `held` microbatches.

    With the sums of the rounded gradients, which take 4 bytes a parameter in the first step. shape: (B, T) of a
    microbatch's tokens. Activations are counted by a trial forward of the stage.
    """
    import torch

    from swarmflow.compute.families import model_config
    from swarmflow.compute.runner import StageRunner
    from swarmflow.compute.stage import build_stage
    from swarmflow.compute.weights import init_stage

    complete = model_config(config)
    built = build_stage(complete, cut, stage, device="cpu")
    init_stage(built, 0)
    x = torch.zeros(*shape, dtype=torch.int64) if stage == 0 else torch.zeros(*shape, int(complete["hidden_size"]))
    weights = sum(group.params.numel() for group in built.groups.values())
    return weights * FLOAT_BYTES * (COPIES_ADAMW + 1) + held * StageRunner(built).activation_bytes(x)


def resident_bytes(pid: int) -> tuple[int, int]:
    """What a process, and its children together, hold in memory now; 0 for those that have ended."""
    return _bytes(pid, "VmRSS"), sum(_bytes(child, "VmRSS") for child in _children(pid))


def _peak_bytes(pid: int) -> int:
    return _bytes(pid, "VmHWM")


def _bytes(pid: int, field: str) -> int:
    """A field of /proc/PID/status, 0 for a process that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        lists = [(thread / "children").read_text(encoding="ascii").split() for thread in threads]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in itertools.chain.from_iterable(lists)]
