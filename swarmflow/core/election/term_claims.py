"""Later terms that members have told a trainer of: it gives way to no single peer's word."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from swarmflow.core.commit.quorum import lies_max
from swarmflow.core.protocol.types import ProcessId
from swarmflow.latest import Latest


@dataclass(slots=True)
class TermClaims:
    """The latest term that each process has told of, by its name."""

    _terms: Latest[str, int] = field(init=False, default_factory=Latest)

    def add(self, sender: ProcessId, term: int) -> None:
        """Record what a member says."""
        self._terms[sender.name] = max(term, self._terms.get(sender.name, 0))

    def believed(self, trainers: Collection[str], voters: Collection[str]) -> int:
        """Return the latest term of which a trainer, or more voters than may lie, have told; 0: none. Both by name."""
        named = [self._terms.get(name, 0) for name in trainers]
        claimed = sorted((self._terms.get(name, 0) for name in voters), reverse=True)
        return max((*named, *claimed[lies_max(len(claimed)) :][:1]), default=0)
