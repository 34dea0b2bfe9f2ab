"""The all-reduce of a stage in the baselines: a butterfly, as in SWARM and in swarmflow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.messages import Aggregate, BaselinePart, BaselineSum
from swarmflow.core.protocol.types import ProcessId

Senders = defaultdict[str, set[ProcessId]]  # by group


@dataclass(slots=True)
class BaselineReduction:
    """One iteration's all-reduce, as one member sees it.

    Each member owns an n-th of the gradient: it receives that part from every member, and sends the sum to all of them.
    So it sends and receives 2 (n-1)/n of the gradient. Of a dead member nothing is awaited any more: the others go on,
    and keep their own numbers in the part that it owned, as hivemind's averaging does. What had not come of the dead
    member's own gradient is told to the runtime, because nobody learns it.
    """

    runtime: BaselineRuntime
    aggregate: Aggregate
    done: Callable[[], None]  # called once, when all groups are reduced
    started: bool = field(init=False, default=False)  # the own gradient is complete
    _open: dict[str, set[ProcessId]] = field(init=False)  # unreduced groups: the other members, those that are alive
    _members: dict[str, frozenset[ProcessId]] = field(init=False)  # the other members of a group, whoever dies
    _sizes: dict[str, int] = field(init=False)  # bytes of a member's part
    _parts: Senders = field(init=False, default_factory=lambda: defaultdict(set))  # who has sent an addend
    _sums: Senders = field(init=False, default_factory=lambda: defaultdict(set))  # who has sent a sum
    _summed: set[str] = field(init=False, default_factory=set)  # groups whose own part is summed, and sent

    def __post_init__(self) -> None:
        me = self.runtime.me
        mine = [(name, members) for name, members in self.aggregate.groups if me in members and len(members) > 1]
        self._members = {name: frozenset(members) - {me} for name, members in mine}
        self._open = {name: set(others) for name, others in self._members.items()}
        self._sizes = {name: self.runtime.share_bytes(name, len(members)) for name, members in mine}

    def start(self) -> None:
        """Send each member its part."""
        self.started = True
        if not self._open:
            self.done()
        for name in self._open:
            self._send(name, BaselinePart(self.aggregate.iteration, name))
        for name in list(self._open):
            self._go_on(name)

    def add_part(self, sender: ProcessId, message: BaselinePart) -> None:
        """Add a part, and send the sum when it is complete."""
        self._parts[message.group].add(sender)
        self._go_on(message.group)

    def take_sum(self, sender: ProcessId, message: BaselineSum) -> None:
        """Take a sum of a part that another member owns."""
        self._sums[message.group].add(sender)
        self._go_on(message.group)

    def lost(self, process: ProcessId) -> None:
        """Await nothing more of a dead member."""
        for name in [name for name, others in self._open.items() if process in others]:
            self._open[name].discard(process)
            self._go_on(name)

    def _go_on(self, group: str) -> None:
        others = self._open.get(group)
        if others is None or not self.started or not self._parts[group] >= others:
            return
        if group not in self._summed:
            self._summed.add(group)
            self._tell_unsummed(group, self._members[group] - self._parts[group], 1)
            self._send(group, BaselineSum(self.aggregate.iteration, group))
        if self._sums[group] >= others:
            # The parts that dead members owned; each member that is left has a copy of its own.
            unsummed = len(self._members[group] - self._sums[group])
            self._tell_unsummed(group, self._members[group] - others, unsummed / (1 + len(others)))
            del self._open[group]
            if not self._open:
                self.done()

    def _tell_unsummed(self, group: str, dead: Iterable[ProcessId], parts: float) -> None:
        for process in sorted(dead):
            self.runtime.unsummed(process, group, parts / (1 + len(self._members[group])))

    def _send(self, group: str, message: BaselinePart | BaselineSum) -> None:
        me = self.runtime.me  # each begins with another one, so that no downlink is idle while others wait for theirs
        for member in sorted(self._open[group], key=lambda member: (member < me, member)):
            self.runtime.send(member, message, self._sizes[group])
