"""Requests for pieces of a stage: who is asked for them, and for how many at a time."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from swarmflow.core.protocol.messages.checks import COUNT_MAX
from swarmflow.core.protocol.types import Member

REQUESTS_MAX = 24  # of one donor at a time
REQUESTS_MIN = 2
APART_MAX = 1  # versions between two peers of a stage: it commits no step before all have made the last update
QUEUED_MAX = 1.5  # pieces that should wait on the way: more would hold up the donor's tensors, fewer leave it idle


@dataclass(eq=False)
class PieceGiver:
    """A donor, as the peer that loads from it sees it."""

    member: Member
    version: int = -1  # in its last answer
    claim: int = -1  # a version that it has told, until others have come near to it
    claimed_s: float = 0.0  # when it had told that
    busy_since_s: float = math.inf  # from when on it has said nothing else
    idle_until_s: float = 0.0  # it had nothing newer
    window: float = 4.0  # requests at a time
    least_s: float = math.inf  # the shortest answer with a piece's state, drifting up: the way may have changed

    def answered(self, seconds: float) -> None:
        """Fit the number of requests to how long the last answer with a state took, as TCP Vegas does.

        A part of the time beyond the shortest is spent in queues, on the way or while the donor trains.
        """
        self.least_s = min(seconds, self.least_s * 1.01)
        queued = self.window * (1.0 - self.least_s / seconds)
        change = 1.0 if queued < QUEUED_MAX else -1.0
        self.window = min(max(self.window + change / self.window, REQUESTS_MIN), REQUESTS_MAX)


@dataclass(eq=False)
class PieceRequest:
    """Pieces that one donor was asked for."""

    places: tuple[int, ...]  # neighbours, of one group
    have: int  # their version here
    donor: PieceGiver
    sent_s: float
    stolen: bool = False  # another donor was asked for the same


def credible(donors: Collection[PieceGiver], late: Collection[PieceGiver], certified: int) -> int:
    """Return the latest version that one of the donors can have, by those of the others; no limit if nothing is known.

    late: what they have told last may be out of date. certified: a version of the run; -1: none is known.
    """
    others = sorted(donors, key=lambda donor: donor.version)[:-1]
    known = max(certified, *(donor.version for donor in others if donor not in late), -1)
    return COUNT_MAX if known < 0 else known + APART_MAX
