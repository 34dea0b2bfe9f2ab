"""The roots that the peers of a stage report of their states: how many reports there are of each."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

StageVersion = tuple[int, int]
"""(stage, version)."""


@dataclass(slots=True)
class RootVotes:
    """Reports of peers that have left since are counted too: what suffices is counted exactly before it decides."""

    agreed: dict[StageVersion, str] = field(init=False, default_factory=dict)
    _counts: defaultdict[StageVersion, Counter[str]] = field(init=False, default_factory=lambda: defaultdict(Counter))

    def add(self, stage: int, version: int, root: str, before: str | None) -> None:
        """Add a report. before: what the same peer has reported of this version."""
        counts = self._counts[stage, version]
        counts[root] += 1
        if before is not None:
            counts[before] -= 1
            if not counts[before]:
                del counts[before]

    def suffice(self, stage: int, version: int, root: str, peers: int) -> bool:
        """Return whether a root may have a majority of so many peers, or all of them may have reported."""
        counts = self._counts[stage, version]
        return 2 * counts[root] > peers or counts.total() >= peers

    def forget(self, before: int) -> None:
        """Forget what was reported of versions before this one."""
        self.agreed = {key: root for key, root in self.agreed.items() if key[1] >= before}
        for key in [key for key in self._counts if key[1] < before]:
            del self._counts[key]

    def clear(self) -> None:
        """Forget everything: the run goes back, and versions are made anew."""
        self.agreed.clear()
        self._counts.clear()
