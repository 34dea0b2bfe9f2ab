"""The incarnations of the processes that a leader knows: a later one replaces the one before."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.protocol.types import ProcessId
from swarmflow.latest import Latest


@dataclass(slots=True)
class Incarnations:
    """The present incarnation of each name, and the ones that were replaced."""

    _present: dict[str, ProcessId] = field(init=False, default_factory=dict)
    # The latest are enough: a dead one speaks for no longer than its last messages travel.
    _retired: Latest[ProcessId, None] = field(init=False, default_factory=Latest)

    def enter(self, process: ProcessId) -> None:
        """Record the present incarnation of a name."""
        self._present[process.name] = process

    def leave(self, process: ProcessId) -> None:
        """Forget an incarnation that has left, unless another one is present by now."""
        if self._present.get(process.name) == process:
            del self._present[process.name]

    def retire(self, process: ProcessId) -> None:
        """Never let an incarnation in again: another one has replaced it."""
        self._retired[process] = None

    def retired(self, process: ProcessId) -> bool:
        """Return whether another incarnation has replaced this one."""
        return process in self._retired

    def namesake(self, process: ProcessId) -> ProcessId | None:
        """Return the present incarnation of the same name, if that is another one."""
        other = self._present.get(process.name)
        return other if other != process else None
