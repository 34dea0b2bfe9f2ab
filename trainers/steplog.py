"""The JSON log of a run: one object a committed step, one write a line."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from swarmflow.core.protocol.messages import StepResult
from swarmflow.errors import CheckpointError
from swarmflow.ownership import check_file, is_object_with
from swarmflow.view.step_line import step_line

log = logging.getLogger("swarmflow")

_LINE_BYTES_MAX = 1 << 20
_TAIL_BYTES = 1 << 16
_KNOWN_MAX = 64
_RETOLD_OTHERWISE = ("time", "validation_loss")
_START = b'{"step": '


class StepLog:
    """Appends the lines of docs/json-log.md to a file.

    A half-written last line, left by a crash, is cut off when the file is opened. A step that a leader reports again,
    after it took over or after this trainer was started again, is recognised by the last lines and not written twice.
    A pipe or a terminal is not read or cut: lines that its reader does not take wait, and hold up no step.
    """

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError when the file cannot be written, ForeignFileError when it holds something else."""
        self._path = path
        self._pending: list[bytes] = []
        self._refused = False
        check_file(path, "--json", _is_step_log)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file, self._regular = _open(path)
            self._known: dict[object, dict[str, object]] = {}
            if self._regular:
                self._cut_torn_line()
                self._known = self._last_steps()
        except OSError as error:
            raise CheckpointError(f"--json {path} cannot be written: {error.strerror}") from None

    def write(self, result: StepResult) -> None:
        """Append a step."""
        fields = step_line(result, time.time())
        if self._has(fields):
            return
        self._known.pop(result.step, None)  # the last lines are the last steps too
        self._known[result.step] = fields
        while len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._pending.append((json.dumps(fields) + "\n").encode())
        self.flush()

    def flush(self) -> None:
        """Write pending lines; lines that a disk refuses are kept, logged once, and tried again at the next call."""
        try:
            self._open_again_if_gone()
            while self._pending:
                if self._regular:
                    _append(self._file, self._pending[0])
                else:  # the written part is gone
                    while rest := self._pending[0]:
                        self._pending[0] = rest[os.write(self._file, rest) :]
                self._pending.pop(0)
        except OSError as error:
            if not self._refused:
                log.warning("--json %s cannot be written: %s; it is tried again", self._path, error.strerror)
            self._refused = True
        else:
            self._refused = False

    def close(self) -> None:
        """Close the file."""
        self.flush()
        if self._pending:
            log.warning("--json %s lacks the last %d steps", self._path, len(self._pending))
        os.close(self._file)

    def _has(self, fields: dict[str, object]) -> bool:
        """Whether the last line of this step is the same. A repeated step does not take the same microseconds."""
        known = self._known.get(fields["step"])
        if known is None or ("validation_loss" in fields and "validation_loss" not in known):
            return False
        return all(known.get(name) == value for name, value in fields.items() if name not in _RETOLD_OTHERWISE)

    def _last_steps(self) -> dict[object, dict[str, object]]:
        """Return the last line of each of the last steps, as far as the end of the file has them."""
        size = os.fstat(self._file).st_size
        start = max(0, size - _TAIL_BYTES)
        lines = os.pread(self._file, size - start, start).split(b"\n")
        found: dict[object, dict[str, object]] = {}
        for line in lines[-_KNOWN_MAX - 1 :] if start == 0 else lines[1:][-_KNOWN_MAX - 1 :]:
            with suppress(ValueError):  # any other text in the file
                fields = json.loads(line)
                if isinstance(fields, dict):
                    found[fields.get("step")] = fields
        return found

    def _open_again_if_gone(self) -> None:
        if not self._regular:
            return
        try:
            if os.path.samestat(self._path.stat(), os.fstat(self._file)):
                return
        except FileNotFoundError:
            log.warning("--json %s was deleted: it is written anew from here on", self._path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file, self._regular = _open(self._path)
        os.close(self._file)
        self._file = file

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


def _open(path: Path) -> tuple[int, bool]:
    """Open a file to append to, and return whether it is regular: not a pipe or a terminal. Raises OSError."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if stat.S_ISREG(mode):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), True
    if stat.S_ISFIFO(mode):  # to read, too: then the pipe need not have a reader already, and its reader may change
        return os.open(path, os.O_RDWR | os.O_NONBLOCK), False
    return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), False


def _append(file: int, line: bytes) -> None:
    """Write a whole line or nothing of it. Raises OSError."""
    size = os.fstat(file).st_size
    try:
        if (written := os.write(file, line)) != len(line):
            raise OSError(errno.ENOSPC, f"the disk took {written} of {len(line)} bytes")
    except OSError:
        if size < os.fstat(file).st_size:
            os.ftruncate(file, size)
        raise


def _is_step_log(file: IO[bytes]) -> bool:
    """Whether a file begins with a step, be it cut short by a crash."""
    line = file.readline(_LINE_BYTES_MAX)
    if not line.endswith(b"\n"):
        return line.startswith(_START) or _START.startswith(line)
    return is_object_with("step", "loss", "tokens", "version")(io.BytesIO(line))
