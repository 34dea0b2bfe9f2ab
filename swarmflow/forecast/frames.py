"""A bounded number of views of a simulated run, at regular virtual times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

FRAMES_MAX: Final = 2000
BYTES_MAX: Final = 64 << 20  # of JSON, which a browser reads as a whole
FIRST_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """One view, and when it was taken."""

    number: int  # of its interval, from 0
    text: bytes  # JSON


@dataclass(slots=True)
class RecordedFrames:
    """Views at most one an interval; the interval doubles when they are too many, until they are few enough.

    So a run may last for any virtual time, and the views are spread over the whole of it.
    """

    frames_max: int = FRAMES_MAX
    bytes_max: int = BYTES_MAX
    every_s: float = FIRST_EVERY_S  # the interval
    size_bytes: int = field(init=False, default=0)
    due_s: float = field(init=False, default=0.0)  # when the next view is wanted
    kept: list[RecordedFrame] = field(init=False, default_factory=list)

    def add(self, now_s: float, view: Mapping[str, object]) -> None:
        """Add a view, unless there is one of this interval already."""
        if now_s < self.due_s:
            return
        self._append(RecordedFrame(int(now_s / self.every_s), _encoded(now_s, view)))
        while len(self.kept) > 1 and (len(self.kept) > self.frames_max or self.size_bytes > self.bytes_max):
            self._thin()
        self.due_s = (int(now_s / self.every_s) + 1) * self.every_s

    def close(self, now_s: float, view: Mapping[str, object]) -> None:
        """Add the last view, whenever the one before was taken."""
        self._append(RecordedFrame(int(now_s / self.every_s), _encoded(now_s, view)))

    def _append(self, frame: RecordedFrame) -> None:
        self.kept.append(frame)
        self.size_bytes += len(frame.text)

    def _thin(self) -> None:
        """Double the interval, and keep the first view of each."""
        self.every_s *= 2
        kept = {frame.number // 2: frame.text for frame in reversed(self.kept)}
        self.kept = [RecordedFrame(number, text) for number, text in reversed(kept.items())]
        self.size_bytes = sum(len(frame.text) for frame in self.kept)


def _encoded(now_s: float, view: Mapping[str, object]) -> bytes:
    return json.dumps({"t": now_s, "view": view}, separators=(",", ":")).encode()
