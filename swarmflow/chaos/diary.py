"""What was done to a run, and when: lines in a file beside the processes' logs, and counts for the report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path


class Diary:
    """Counts by name and tells; `say` also shows it to the person."""

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
        """Since the run began."""
        return time.monotonic() - self._began_s

    def note(self, line: str) -> None:
        """Only for the file."""
        self._file.write(f"{time.strftime('%H:%M:%S')} {self.seconds:7.2f} s, step {self.step}: {line}\n")
        self._file.flush()

    def blow(self, line: str, *names: str) -> None:
        """Something was done to a process: it counts under these names."""
        self.counts.update(names)
        self.note(line)
        self._say(f"step {self.step}: {line}")
