"""Feeds of what is over: a recorded run, and the log of a finished one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from swarmflow.errors import DataError

RECORDING_BYTES_MAX = 1 << 30


class Recording:
    """A recorded run: its frames, events and steps, which the page plays by itself."""

    def __init__(self, recorded: dict[str, Any] | bytes) -> None:
        """recorded: `duration_s`, `frames`, `events` and `steps`, as docs/view.md lists them; bytes: as JSON."""
        self._body = recorded if isinstance(recorded, bytes) else json.dumps(recorded).encode()

    @classmethod
    def of_steps(cls, path: Path) -> Recording:
        """Return the curves of a run from the file that `swarmflow trainer --json` has written.

        Raises DataError where it is none.
        """
        steps: list[dict[str, Any]] = []
        for line in _lines(path):
            while steps and steps[-1]["step"] >= line["step"]:
                steps.pop()  # a roll-back has undone it
            steps.append(line)
        if not steps:
            raise DataError(f"{path} has no steps: give the file that `swarmflow trainer --json` has written")
        began_s = steps[0]["time"] - steps[0].get("seconds", 0.0)
        for line in steps:
            line["time"] -= began_s
        return cls({"duration_s": steps[-1]["time"], "frames": [], "events": [], "steps": steps})

    @classmethod
    def of_file(cls, path: Path) -> Recording:
        """Return the recording that `swarmflow simulate --view-file` has written. Raises DataError where it is none."""
        text = _text(path)
        try:
            recorded = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path} is no recording: {error}") from None
        if not isinstance(recorded, dict) or not {"duration_s", "frames", "events", "steps"} <= recorded.keys():
            raise DataError(f"{path} is no recording: give a file that `swarmflow simulate --view-file` has written")
        return cls(text.encode())

    async def run(self, after: int) -> bytes:
        """Return that this is a recording."""
        return json.dumps({"mode": "recording", "view": None, "events": [], "error": None}).encode()

    async def steps(self, after: int) -> bytes:
        """Return none: they are in the recording."""
        return b'{"steps": []}'

    async def recording(self) -> bytes:
        """Return everything that was recorded."""
        return self._body


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > RECORDING_BYTES_MAX:
            raise DataError(f"{path} has more than {RECORDING_BYTES_MAX >> 20} MiB, too much for a page")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _lines(path: Path) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(_text(path).splitlines(keepends=True), 1):
        if not text.endswith("\n"):
            break  # a crash has left it half-written
        try:
            line = json.loads(text)
            seconds = {"seconds": float(line["seconds"])} if "seconds" in line else {}
            lines.append({**line, **seconds, "step": int(line["step"]), "time": float(line["time"])})
        except (ValueError, KeyError, TypeError, OverflowError):
            raise DataError(f"{path}, line {number}: no step of a run's log (docs/json-log.md)") from None
    return lines
