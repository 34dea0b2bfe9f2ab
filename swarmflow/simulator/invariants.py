"""The invariants of the protocol, checked at every decision and every update of a simulated swarm."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from swarmflow.core.protocol.messages import Commit
from swarmflow.core.protocol.types import Epoch
from swarmflow.simulator.arithmetic import Sum


class InvariantViolated(AssertionError):
    """An invariant does not hold; the seed replays it."""


@dataclass(slots=True)
class _History:
    """What was decided in one lineage."""

    ballots: dict[Epoch, int] = field(default_factory=dict)  # of each committed epoch, in the order of the decisions
    term: int = 0  # of the last decision

    @property
    def last(self) -> Epoch | None:
        """The epoch that was decided last."""
        return next(reversed(self.ballots), None)


@dataclass(slots=True)
class Witness:
    """Checks every decision of every leader, and every update of every peer, on whichever side of a partition.

    Each microbatch is in a step once, and the peers of a stage agree; what a liar was given to make may be anything. A
    lineage is one history: its versions follow one another, each is decided once, and no leader of an earlier term
    decides after one of a later term. So it notices two sides of a partition that go on in one lineage, although each
    of them is consistent.
    """

    seed: int
    microbatches: int  # of a step
    exact: Sum = field(init=False)  # the gradient of a step
    _histories: dict[str, _History] = field(init=False, default_factory=dict)  # by lineage
    _parameters: dict[tuple[str, int, int], str] = field(init=False, default_factory=dict)  # lineage, stage, version
    _gradients: dict[tuple[str, int, int], str] = field(init=False, default_factory=dict)  # the same
    _epochs: dict[tuple[str, int], Epoch] = field(init=False, default_factory=dict)  # by lineage and version

    def __post_init__(self) -> None:
        self.exact = Sum.of([Counter(range(self.microbatches))])

    def decided(self, lineage: str, commit: Commit) -> bool:
        """Check a commit that a leader sends. Returns whether it is the first time. Raises InvariantViolated."""
        history = self._histories.setdefault(lineage, _History())
        epoch, last = commit.epoch, history.last
        if epoch in history.ballots:
            if history.ballots[epoch] != commit.ballot:
                raise self._violated(f"two ballots of {epoch} are committed in lineage {lineage}")
            return False
        if last is not None and (epoch < last or epoch.step != last.step + 1):
            raise self._violated(f"lineage {lineage} commits {epoch} after {last}")
        if commit.term < history.term:
            raise self._violated(f"lineage {lineage} commits {epoch} in term {commit.term} after {history.term}")
        history.ballots[epoch], history.term = commit.ballot, commit.term
        return True

    def updated(self, lineage: str, epoch: Epoch, stage: int, version: int, parameters: str, gradient: Sum) -> None:
        """Check an update that a peer has applied. Raises InvariantViolated."""
        if gradient.name != self.exact.name and not gradient.given:
            raise self._violated(f"version {version} of stage {stage} learnt {dict(gradient.counts)}")
        if self._gradients.setdefault((lineage, stage, version), gradient.name) != gradient.name:
            raise self._violated(f"two different gradients of version {version} of stage {stage}")
        if self._parameters.setdefault((lineage, stage, version), parameters) != parameters:
            raise self._violated(f"two different versions {version} of stage {stage}")
        if self._epochs.setdefault((lineage, version), epoch) != epoch:
            raise self._violated(f"version {version} of stage {stage} is of another history than the others'")

    def learnt(self, gradient: Sum) -> Sum:
        """Return what the states of a run learn of a gradient: not what a liar did to a piece that it was given."""
        return self.exact if gradient.given else gradient

    def _violated(self, what: str) -> InvariantViolated:
        return InvariantViolated(f"seed {self.seed}: {what}")
