"""The JSON log of a run: one object a committed step, one write a line."""

from __future__ import annotations

import io
import json
import math
import os
import time
from pathlib import Path
from typing import IO

from swarmflow.core.messages import StepResult
from swarmflow.errors import CheckpointError
from swarmflow.ownership import check_file, is_object_with

_LINE_BYTES_MAX = 1 << 20
_START = b'{"step": '


class StepLog:
    """Appends to a file what docs/json-log.md lists.

    What a crash left of a half-written last line is cut off when it is opened.
    """

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError when the file cannot be written, ForeignFileError when it holds something else."""
        self._path = path
        check_file(path, "--json", _is_step_log)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._cut_torn_line()
        except OSError as error:
            raise CheckpointError(f"--json {path} cannot be written: {error.strerror}") from None

    def write(self, result: StepResult) -> None:
        """Append a step. Raises CheckpointError, for instance when the disk is full."""
        fields: dict[str, object] = {
            "step": result.step, "loss": _finite(result.loss), "tokens": result.tokens,
            "seconds": round(result.seconds, 6), "grad_norm": _finite(result.grad_norm), "lr": result.learning_rate,
            "microbatches": result.microbatches, "peers": list(result.peers), "retries": result.retries,
            "version": result.step + 1, "time": round(time.time(), 3),
        }  # fmt: skip
        if result.validation_loss is not None:
            fields["validation_loss"] = _finite(result.validation_loss)
        line = (json.dumps(fields) + "\n").encode()
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise CheckpointError(f"--json {self._path} cannot be written: {error.strerror}") from None
        if written != len(line):
            raise CheckpointError(f"--json {self._path} cannot be written: the disk is full")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _cut_torn_line(self) -> None:
        size = os.fstat(self._file).st_size
        end = size
        while end > 0:
            start = max(0, end - 4096)
            block = os.pread(self._file, end - start, start)
            newline = block.rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._file, end)


def _is_step_log(file: IO[bytes]) -> bool:
    """Whether a file begins with a step, be it cut short by a crash."""
    line = file.readline(_LINE_BYTES_MAX)
    if not line.endswith(b"\n"):
        return line.startswith(_START) or _START.startswith(line)
    return is_object_with("step", "loss", "tokens", "version")(io.BytesIO(line))


def _finite(value: float) -> float | None:
    """JSON has no word for not-a-number and infinity."""
    return value if math.isfinite(value) else None
