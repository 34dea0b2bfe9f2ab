"""The part of a link that background messages get at least, where other messages would use all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

SHARE_FIRST = 1 / 32  # of a link that is always busy, for a load: a step that it alone limits becomes 3% longer
COPIES_SHARE = 1 / 8  # for copies of checkpoints, which are to end before the next ones begin
SHARE_MAX = 1 / 2
DOUBLES_S = 240.0  # the share is doubled in so long
MEMORY_S = 60.0  # how soon what was sent is forgotten: idle time at a step's end counts in the next step too
PAUSE_S = 60.0  # after so long without a request of a load the first share counts again


@dataclass(slots=True)
class BackgroundShare:
    """Decides when a background message has given way for long enough.

    Joins and copies give way to training. On a link that training always fills they would never end, and the very stage
    that needs another peer most would never get one. A load takes twice as much every four minutes, up to half of
    the link: the longer it takes, the more updates have to follow it. Copies have time until the next checkpoint.

    Amounts are bytes, or seconds of a link; `now` is in seconds. Idle time counts as their share.
    """

    least: float = field(init=False, default=COPIES_SHARE)
    own: float = field(init=False, default=0.0)  # sent in the background lately
    others: float = field(init=False, default=0.0)  # sent by others, while background messages were waiting
    _since_s: float = field(init=False, default=-math.inf)  # since when peers load from here
    _loaded_s: float = field(init=False, default=-math.inf)  # when one asked last
    _faded_s: float = field(init=False, default=0.0)

    def load(self, least: float, now: float) -> None:
        """Note that a peer loads from here, for which all others wait if `least` is more than the first share."""
        if now - self._loaded_s > PAUSE_S:
            self._since_s, self.own, self.others = now, 0.0, 0.0
        self._loaded_s = now
        if least > self.least:
            self._forgive(least)
        self.least = max(least, SHARE_FIRST)

    def pause(self, now: float) -> None:
        """Note that there is nothing to send any more: nothing is owed, and what comes next may be less urgent."""
        self._forgive(self.share(now))
        self.least = COPIES_SHARE

    def sent(self, amount: float, now: float) -> None:
        """Note what was sent in the background."""
        self._fade(now)
        self.own += amount

    def yielded(self, amount: float, now: float) -> None:
        """Note what others have sent while something waits in the background."""
        self._fade(now)
        self.others += amount

    def due(self, now: float) -> float:
        """Return how much may be sent in the background although others have something to send; at most 0: nothing."""
        self._fade(now)
        return self.share(now) * (self.own + self.others) - self.own

    def share(self, now: float) -> float:
        """Return the share of the link at this moment."""
        if now - self._loaded_s > PAUSE_S:
            return self.least
        # It grows smoothly: in steps, what is due of the last minute would be sent at once.
        grown = SHARE_FIRST * math.exp2(min((now - self._since_s) / DOUBLES_S, 64.0))
        return max(self.least, min(grown, SHARE_MAX))

    def _forgive(self, share: float) -> None:
        """Let nothing be due for the past at this share."""
        self.others = min(self.others, self.own * (1.0 - share) / share)

    def _fade(self, now: float) -> None:
        factor = math.exp((self._faded_s - now) / MEMORY_S)
        self.own, self.others, self._faded_s = self.own * factor, self.others * factor, now
