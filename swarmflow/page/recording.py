"""The feeds of what is over: a recorded run, and the log of a finished one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from swarmflow.errors import DataError

RECORDING_BYTES_MAX: Final = 1 << 30
_LISTS: Final = ("frames", "events", "steps")


class Recording:
    """A recorded run, which the page plays by itself: frames (a view each), events and steps, with their times."""

    def __init__(self, recorded: dict[str, Any] | bytes) -> None:
        """recorded: `duration_s`, `frames`, `events` and `steps`, as docs/page.md lists them; bytes: as JSON."""
        if not isinstance(recorded, bytes):
            recorded = json.dumps(recorded, separators=(",", ":"), allow_nan=False).encode()
        self._body = recorded

    @classmethod
    def of_file(cls, path: Path) -> Recording:
        """Return the recording in a JSON file. Raises DataError where it is none."""
        text = _text(path)
        try:
            _check(json.loads(text, parse_constant=_refuse))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(f"{path} is no recording of a run: {error}; docs/page.md has its format") from None
        return cls(text.encode())

    @classmethod
    def of_steps(cls, path: Path) -> Recording:
        """Return the curves of a finished run, from what `swarmflow trainer --json` has written. Raises DataError."""
        by_step: dict[int, dict[str, Any]] = {}
        for line in _lines(path):
            while by_step and line["step"] <= next(reversed(by_step)):
                by_step.popitem()  # a roll-back: this step and all later ones were done again
            by_step[line["step"]] = line
        steps = list(by_step.values())
        if not steps:
            raise DataError(f"{path} has no steps: give the file that `swarmflow trainer --json` has written")
        began_s = steps[0]["time"] - float(steps[0].get("seconds", 0.0))
        for line in steps:
            line["time"] = round(line["time"] - began_s, 3)
        return cls({"duration_s": steps[-1]["time"], "frames": [], "events": [], "steps": steps})

    async def run(self, after: int) -> bytes:
        """Return that there is a recording instead of a view."""
        return b'{"mode":"recording","view":null,"events":[],"error":null}'

    async def steps(self, after: int) -> bytes:
        """Return none: they are in the recording."""
        return b'{"steps":[]}'

    async def recording(self) -> bytes:
        """Return everything that was recorded."""
        return self._body


def _refuse(name: str) -> None:
    """Refuse what Python takes for JSON and no browser does."""
    raise ValueError(f"{name} is no number of JSON")


def _check(recorded: Any) -> None:  # noqa: ANN401
    """Raise ValueError, TypeError or KeyError unless this is a recording."""
    if not isinstance(recorded, dict) or not all(isinstance(recorded.get(name), list) for name in _LISTS):
        raise ValueError("it needs duration_s, frames, events and steps")
    times = {"frames": "t", "events": "time", "steps": "time"}
    duration_s = float(recorded["duration_s"])
    for name, key in times.items():
        moments = [float(entry[key]) for entry in recorded[name]]
        if moments != sorted(moments):
            raise ValueError(f"its {name} are not in the order of their times")
    if not all(isinstance(frame["view"], dict) for frame in recorded["frames"]) or not duration_s >= 0:
        raise ValueError("a frame has no view, or the duration is below 0")


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > RECORDING_BYTES_MAX:
            raise DataError(f"{path} has more than {RECORDING_BYTES_MAX >> 20} MiB, too much for a page")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the steps of a log; a last line that was cut off by a crash is left out. Raises DataError."""
    lines: list[dict[str, Any]] = []
    rows = _text(path).removesuffix("\n").split("\n")
    for number, row in enumerate(rows, 1):
        try:
            line = json.loads(row)
            lines.append({**line, "step": int(line["step"]), "time": float(line["time"])})
        except (ValueError, KeyError, TypeError):
            if lines and number == len(rows):
                break
            raise DataError(f"{path}, line {number}: no step of a run's log (docs/json-log.md)") from None
    return lines
