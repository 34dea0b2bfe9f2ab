"""When a leader begins a ballot, and when it begins one anew."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class BallotTimes:
    """The times of a step's ballots."""

    complete_s: float | None = field(init=False, default=None)  # since when every hop is done
    held_until_s: float = field(init=False, default=0.0)  # so long the first ballot waits for peers that load
    due_s: float = field(init=False, default=0.0)  # when the ballot is begun anew, unless it gets on
    in_vain: int = field(init=False, default=0)  # ballots in a row that stood still
