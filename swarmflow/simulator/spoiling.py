"""Pretended machines whose numbers are not finite: set `world.spoiling[name]` for a process, under all its lives."""

from __future__ import annotations

from dataclasses import dataclass

SPOILT = -1  # in a pretended gradient: it is not finite


@dataclass(frozen=True, slots=True)
class Spoiling:
    """From since_s to until_s what a machine computes of a microbatch is not finite.

    silent: activations and what it passes on are finite, its sums of gradients are not; a careful try sees it at once.
    """

    since_s: float = 0.0
    until_s: float = float("inf")
    silent: bool = False

    def shows(self, now_s: float, careful: bool) -> bool:
        """Whether a hop that is computed now is seen not to be finite."""
        return self.since_s <= now_s < self.until_s and (careful or not self.silent)

    def hides(self, now_s: float, careful: bool) -> bool:
        """Whether the gradient of a hop is not finite, and nobody sees it before the norm."""
        return self.since_s <= now_s < self.until_s and self.silent and not careful


SOUND = Spoiling(until_s=0.0)
