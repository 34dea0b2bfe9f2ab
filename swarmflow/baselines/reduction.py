"""The all-reduce of a stage in the baselines: a butterfly, as in SWARM and in swarmflow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.messages import Aggregate, BaselinePart, BaselineSum
from swarmflow.core.types import ProcessId
from swarmflow.simulator.hardware import ELEMENT_BYTES


@dataclass(slots=True)
class BaselineReduction:
    """One iteration's all-reduce, as one member sees it. done: called once, when all its groups are reduced.

    Each member owns an n-th of the gradient: it gets that part of everybody's, and sends the sum to everybody. So it
    sends and gets 2 (n-1)/n of the gradient. A death amid it ends it at once for the group (in the baselines' favour).
    """

    runtime: BaselineRuntime
    aggregate: Aggregate
    done: Callable[[], None]
    _open: dict[str, tuple[ProcessId, ...]] = field(default_factory=dict)
    _parts: Counter[str] = field(default_factory=Counter)
    _wholes: Counter[str] = field(default_factory=Counter)

    def start(self) -> None:
        """Send everybody its part."""
        mine = [(name, members) for name, members in self.aggregate.groups if self.runtime.me in members]
        self._open = {name: members for name, members in mine if len(members) > 1}
        for name in self._open:
            self._tell(name, BaselinePart(self.aggregate.iteration, name))
        self._finish()

    def part(self, message: BaselinePart) -> None:
        """An addend."""
        self._parts[message.group] += 1
        members = self._open.get(message.group)
        if members is not None and self._parts[message.group] == len(members) - 1:
            self._tell(message.group, BaselineSum(self.aggregate.iteration, message.group))
            self._end(message.group)

    def whole(self, message: BaselineSum) -> None:
        """A sum."""
        self._wholes[message.group] += 1
        self._end(message.group)

    def lost(self, process: ProcessId) -> None:
        """A member is dead: those who are left are done."""
        hit = [name for name, members in self._open.items() if process in members]
        for name in hit:
            del self._open[name]
        if hit:
            self._finish()

    def _end(self, group: str) -> None:
        members = self._open.get(group)
        others = 0 if members is None else len(members) - 1
        if members is not None and self._parts[group] >= others and self._wholes[group] >= others:
            del self._open[group]
            self._finish()

    def _finish(self) -> None:
        if not self._open:
            self.done()

    def _tell(self, group: str, message: BaselinePart | BaselineSum) -> None:
        members = self._open[group]
        size = ELEMENT_BYTES * -(-self.runtime.elements(group) // len(members))
        for member in members:
            if member != self.runtime.me:
                self.runtime.send(member, message, size)
