"""The record of faults in a run: lines in a file beside the processes' logs, and counts for the report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path


class Diary:
    """Counts faults by name and logs them; `say` also shows a line to the user."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.counts: Counter[str] = Counter()
        self.step = 0
        self._say = say
        self._began_s = time.monotonic()
        self._file = path.open("a", encoding="utf-8")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def seconds(self) -> float:
        """The seconds since the run began."""
        return time.monotonic() - self._began_s

    def note(self, line: str) -> None:
        """Write a line to the file only."""
        self._file.write(f"{time.strftime('%H:%M:%S')} {self.seconds:7.2f} s, step {self.step}: {line}\n")
        self._file.flush()

    def blow(self, line: str, *names: str) -> None:
        """Record a fault of a process under these names."""
        self.counts.update(names)
        self.note(line)
        self._say(f"step {self.step}: {line}")
