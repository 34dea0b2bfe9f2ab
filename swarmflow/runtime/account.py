"""What becomes of the seconds that a peer computes: of use once a commit holds them, in vain when it never will."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from swarmflow.core.types import Microbatch

Direction = Literal["forward", "loss", "backward", "replay", "undo", "recompute"]
Outcome = Literal["used", "unused", "twice"]

_ACCUMULATES: Final = ("loss", "backward", "replay")


class Account:
    """The seconds of the step at hand, by microbatch, until it is known whether they were of use.

    What a process that dies has in it died with it; all else is settled sooner or later.
    """

    def __init__(self, settle: Callable[[Outcome, float], None]) -> None:
        """settle: told the seconds whose outcome is known now."""
        self._settle = settle
        self._open: dict[Microbatch, dict[Direction, float]] = {}

    def spent(self, microbatch: Microbatch, direction: Direction, seconds: float) -> None:
        """A hop was computed. Of what is computed twice only the last time can be of use, of what is undone nothing.

        What is recomputed for others repeats work that is in use already. A replay is the backward pass of a hop for
        whose graph there was no memory: its first forward pass had to be, and is done twice.
        """
        if direction == "recompute":
            self.wasted(seconds)
            return
        hop = self._open.setdefault(microbatch, {})
        if direction == "replay":
            self._settle("twice", hop.pop("forward", 0.0))
        if direction in hop:
            self.wasted(sum(hop.values()))
            hop.clear()
        hop[direction] = seconds
        if direction == "undo":
            self.wasted(sum(hop.values()))
            del self._open[microbatch]

    def wasted(self, seconds: float) -> None:
        """The result is of no use, for instance because it came too late for its step."""
        self._settle("unused", seconds)

    def committed(self) -> None:
        """The step is committed: what was accumulated is in it, and a forward without its backward is not."""
        for hop in self._open.values():
            used = any(direction in hop for direction in _ACCUMULATES)
            self._settle("used" if used else "unused", sum(hop.values()))
        self._open.clear()

    def void(self) -> None:
        """The step starts over, or is not this process's any more."""
        self.wasted(sum(sum(hop.values()) for hop in self._open.values()))
        self._open.clear()
