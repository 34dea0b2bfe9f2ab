"""What must never happen in a simulated swarm."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from swarmflow.core.types import ProcessId
from swarmflow.simulator.arithmetic import Sum


class InvariantViolated(AssertionError):
    """Something happened that must never happen; the seed replays it."""


@dataclass(slots=True)
class Witness:
    """Sees every update. microbatches: of a step; each must be in it once, and the peers of a stage must agree.

    The parameters of each lineage, stage and version are remembered: within a lineage there is one of each.
    """

    seed: int
    microbatches: int
    _exact: str = field(init=False)
    _seen: dict[tuple[ProcessId, int, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._exact = Sum.of([Counter(range(self.microbatches))]).name

    def updated(self, lineage: ProcessId, stage: int, version: int, parameters: str, gradient: Sum) -> None:
        """A peer has applied an update. Raises InvariantViolated."""
        if gradient.name != self._exact:
            learnt = dict(gradient.counts)
            raise InvariantViolated(f"seed {self.seed}: version {version} of stage {stage} learnt {learnt}")
        if self._seen.setdefault((lineage, stage, version), parameters) != parameters:
            raise InvariantViolated(f"seed {self.seed}: two different versions {version} of stage {stage}")
