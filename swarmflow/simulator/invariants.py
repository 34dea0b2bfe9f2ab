"""What must never happen in a simulated swarm."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from swarmflow.core.messages import Commit
from swarmflow.core.types import Epoch
from swarmflow.simulator.arithmetic import Sum


class InvariantViolated(AssertionError):
    """Something happened that must never happen; the seed replays it."""


@dataclass(slots=True)
class _History:
    """What was decided in one lineage: the ballot of each committed epoch, in the order of the decisions."""

    ballots: dict[Epoch, int] = field(default_factory=dict)
    term: int = 0  # of the last decision

    @property
    def last(self) -> Epoch | None:
        """The epoch decided last."""
        return next(reversed(self.ballots), None)


@dataclass(slots=True)
class Witness:
    """Sees every decision of every leader, and every update of every peer, whichever side of a partition it is on.

    microbatches: of a step; each must be in it once, and the peers of a stage must agree. A lineage is one history: its
    versions follow one another, each is decided once, and no leader of an earlier term decides after one of a later
    term. So two sides of a partition that go on in one lineage are seen although each of them is consistent.
    """

    seed: int
    microbatches: int
    _exact: str = field(init=False)
    _histories: dict[str, _History] = field(default_factory=dict)
    _parameters: dict[tuple[str, int, int], str] = field(default_factory=dict)
    _epochs: dict[tuple[str, int], Epoch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._exact = Sum.of([Counter(range(self.microbatches))]).name

    def decided(self, lineage: str, commit: Commit) -> None:
        """A leader commits a step, or tells of a commit once more. Raises InvariantViolated."""
        history = self._histories.setdefault(lineage, _History())
        epoch, last = commit.epoch, history.last
        if epoch in history.ballots:
            if history.ballots[epoch] != commit.ballot:
                raise self._violated(f"two ballots of {epoch} are committed in lineage {lineage}")
            return
        if last is not None and (epoch < last or epoch.step != last.step + 1):
            raise self._violated(f"lineage {lineage} commits {epoch} after {last}")
        if commit.term < history.term:
            raise self._violated(f"lineage {lineage} commits {epoch} in term {commit.term} after {history.term}")
        history.ballots[epoch], history.term = commit.ballot, commit.term

    def updated(self, lineage: str, epoch: Epoch, stage: int, version: int, parameters: str, gradient: Sum) -> None:
        """A peer has applied an update. Raises InvariantViolated."""
        if gradient.name != self._exact:
            raise self._violated(f"version {version} of stage {stage} learnt {dict(gradient.counts)}")
        if self._parameters.setdefault((lineage, stage, version), parameters) != parameters:
            raise self._violated(f"two different versions {version} of stage {stage}")
        if self._epochs.setdefault((lineage, version), epoch) != epoch:
            raise self._violated(f"version {version} of stage {stage} is of another history than the others'")

    def _violated(self, what: str) -> InvariantViolated:
        return InvariantViolated(f"seed {self.seed}: {what}")
