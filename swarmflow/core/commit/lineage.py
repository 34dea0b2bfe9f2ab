"""The lineage that a leader goes on with, and the electorate that must agree to its next commit (see quorum.py)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from swarmflow.core.commit.quorum import Electorate, electorate_before, electorate_of
from swarmflow.core.protocol.messages import OpenStep
from swarmflow.core.protocol.types import ProcessId


@dataclass(slots=True)
class Lineage:
    """The leader's lineage: its random name, and the electorate that must agree to the next commit."""

    name: str
    me: ProcessId
    begun_from_disk: bool = field(init=False, default=True)  # by this leader, which has not taken it over
    # That of the last committed step; before the first commit, that of the first OpenStep. The next step needs its
    # majority too.
    electorate: Electorate | None = field(init=False, default=None)
    # Processes that can follow no other leader, and so count as present: this one, and those that left for good.
    committed_followers: set[ProcessId] = field(init=False)

    def __post_init__(self) -> None:
        self.committed_followers = {self.me}

    def has_majority(self, present: Set[ProcessId]) -> bool:
        """Return whether enough of those that took part in the last step are present for the next one to be opened."""
        return self.electorate is None or self.electorate.commits(present | self.committed_followers)

    def take_over(self, opened: OpenStep) -> None:
        """Go on with the lineage of a former leader's step."""
        self.begun_from_disk, self.name = False, opened.lineage
        self.electorate = electorate_before(opened) or electorate_of(opened)

    def rename(self, name: str) -> None:
        """Begin a new lineage that keeps the electorate, where versions may be committed a second time."""
        self.name = name

    def fork(self, name: str) -> None:
        """Begin a new lineage without an electorate: the old one may go on with this one under another leader."""
        self.name, self.electorate = name, None

    def committed(self, opened: OpenStep) -> None:
        """Take the electorate of a committed step, unless the lineage was changed since that step was opened."""
        if opened.lineage == self.name:
            self.electorate = electorate_of(opened)
            self.committed_followers &= {*self.electorate.processes, self.me}
