"""The history of versions that a leader goes on with, and who votes in it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from swarmflow.core.commit.quorum import Electorate, electorate, electorate_before
from swarmflow.core.protocol.messages import OpenStep
from swarmflow.core.protocol.types import ProcessId


@dataclass(slots=True)
class Lineage:
    """A lineage as its leader knows it."""

    name: str
    me: ProcessId
    founded: bool = field(init=False, default=True)  # this leader has begun it, from disk
    # The electorate of the last step committed in it, or of its first: it votes on the next one, beside the members.
    electors: Electorate | None = field(init=False, default=None)
    bound: set[ProcessId] = field(init=False)  # they follow no other leader: this one, and those that left for good

    def __post_init__(self) -> None:
        self.bound = {self.me}

    def has_majority(self, present: Set[ProcessId]) -> bool:
        """Return whether enough of those that took part in the last step are present for the next one to be opened."""
        return self.electors is None or self.electors.commits(present | self.bound)

    def take_over(self, opened: OpenStep) -> None:
        """Go on with the lineage of a former leader's step."""
        self.founded, self.name = False, opened.lineage
        self.electors = electorate_before(opened) or electorate(opened)

    def fork(self, name: str) -> None:
        """Begin another lineage: the former electorate may go on with this one."""
        self.name, self.electors = name, None

    def committed(self, opened: OpenStep) -> None:
        """Take the electorate of a committed step, unless that was finished for a lineage left since."""
        if opened.lineage == self.name:
            self.electors = electorate(opened)
            self.bound &= {*self.electors.processes, self.me}
