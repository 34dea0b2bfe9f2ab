"""The committed steps of a run, from the logs of all its trainers, as they are written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class StepLogs:
    """The step logs of all trainers of a run."""

    # (step, seconds that it took) -> the line; a step that was repeated after a roll-back has two.
    commits: dict[tuple[int, float], dict[str, Any]] = field(default_factory=dict)
    newest: dict[str, Any] | None = None
    _read: dict[Path, int] = field(default_factory=dict)

    def read(self, paths: list[Path]) -> list[dict[str, Any]]:
        """Return the commits that are new since the last call, in the order of their times."""
        found: list[dict[str, Any]] = []
        for path in paths:
            for line in self._lines(path):
                step = json.loads(line)
                if self.commits.setdefault((step["step"], step["seconds"]), step) is step:
                    found.append(step)
        found.sort(key=lambda step: float(step["time"]))
        if found:
            self.newest = found[-1]
        return found

    def losses(self) -> dict[int, float]:
        """Return step -> its loss, of its last commit."""
        in_order = sorted(self.commits.values(), key=lambda step: float(step["time"]))
        return {step["step"]: step["loss"] for step in in_order}

    def _lines(self, path: Path) -> list[str]:
        """Return whole lines since the last call. A trainer that starts again cuts off only an incomplete line."""
        if not path.is_file():
            return []
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        return whole.decode().splitlines()
