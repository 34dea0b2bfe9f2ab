"""Accounts for the seconds that a peer computes: used once a commit contains the result, unused if none ever will."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from swarmflow.core.protocol.types import Epoch, Microbatch

Direction = Literal["forward", "loss", "backward", "weights", "replay", "undo", "recompute"]
Outcome = Literal["used", "unused", "twice"]

_ACCUMULATES: Final = ("loss", "backward", "replay")


class Account:
    """The seconds of the current step, by microbatch, until their outcome is settled.

    A process that dies takes its account with it; in all other cases every second is settled.
    """

    def __init__(self, settle: Callable[[Outcome, float], None]) -> None:
        """settle: called with seconds whose outcome has been decided."""
        self._settle = settle
        self._open: dict[Microbatch, dict[Direction, float]] = {}

    def spent(self, microbatch: Microbatch, direction: Direction, seconds: float) -> None:
        """Record a computed hop. Of a hop computed twice only the last result can be used, of an undone hop none.

        A recomputation for other peers repeats work that is used already. A replay is the backward pass of a hop whose
        graph was not kept in memory: its first forward pass was necessary, and is done twice.
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
        """Record seconds whose result is not used, for instance because it is too late for its step."""
        self._settle("unused", seconds)

    def committed(self, epoch: Epoch) -> None:
        """Settle a committed step: accumulated gradients are in it, a forward pass without its backward pass is not."""
        for microbatch in [microbatch for microbatch in self._open if microbatch.epoch <= epoch]:
            hop = self._open.pop(microbatch)
            used = any(direction in hop for direction in _ACCUMULATES)
            self._settle("used" if used else "unused", sum(hop.values()))

    def void(self) -> None:
        """Settle a step that starts over, or that this process leaves."""
        self.wasted(sum(sum(hop.values()) for hop in self._open.values()))
        self._open.clear()
