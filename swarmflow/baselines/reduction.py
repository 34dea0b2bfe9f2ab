"""The all-reduce of a stage in the baselines: a butterfly, as in SWARM and in swarmflow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.messages import Aggregate, BaselinePart, BaselineSum
from swarmflow.core.protocol.types import ProcessId


@dataclass(slots=True)
class BaselineReduction:
    """One iteration's all-reduce, as one member sees it.

    Each member owns an n-th of the gradient: it receives that part from every member, and sends the sum to all of them.
    So it sends and receives 2 (n-1)/n of the gradient. A death ends the reduction of its group at once (in the
    baselines' favour).
    """

    runtime: BaselineRuntime
    aggregate: Aggregate
    done: Callable[[], None]  # called once, when all groups are reduced
    started: bool = field(init=False, default=False)  # the own gradient is complete
    _open: dict[str, tuple[ProcessId, ...]] = field(init=False, default_factory=dict)  # unreduced groups: their members
    _parts: Counter[str] = field(init=False, default_factory=Counter)  # addends received, by group
    _sums: Counter[str] = field(init=False, default_factory=Counter)  # sums received, by group

    def __post_init__(self) -> None:
        mine = [(name, members) for name, members in self.aggregate.groups if self.runtime.me in members]
        self._open = {name: members for name, members in mine if len(members) > 1}

    def start(self) -> None:
        """Send each member its part."""
        self.started = True
        for name in self._open:
            self._send(name, BaselinePart(self.aggregate.iteration, name))
        self._finish()

    def add_part(self, message: BaselinePart) -> None:
        """Add a part, and send the sum when it is complete."""
        self._parts[message.group] += 1
        members = self._open.get(message.group)
        if members is not None and self._parts[message.group] == len(members) - 1:
            self._send(message.group, BaselineSum(self.aggregate.iteration, message.group))
            self._end(message.group)

    def take_sum(self, message: BaselineSum) -> None:
        """Take a sum of a part that another member owns."""
        self._sums[message.group] += 1
        self._end(message.group)

    def lost(self, process: ProcessId) -> None:
        """End the groups of a dead member."""
        hit = [name for name, members in self._open.items() if process in members]
        for name in hit:
            del self._open[name]
        if hit:
            self._finish()

    def _end(self, group: str) -> None:
        members = self._open.get(group)
        others = 0 if members is None else len(members) - 1
        if members is not None and self._parts[group] >= others and self._sums[group] >= others:
            del self._open[group]
            self._finish()

    def _finish(self) -> None:
        if self.started and not self._open:
            self.done()

    def _send(self, group: str, message: BaselinePart | BaselineSum) -> None:
        members = self._open[group]
        size = self.runtime.share_bytes(group, len(members))
        for member in members:
            if member != self.runtime.me:
                self.runtime.send(member, message, size)
