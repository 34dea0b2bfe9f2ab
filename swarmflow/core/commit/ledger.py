"""The leader's record of who has accumulated which hop of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.protocol.messages import Done
from swarmflow.core.protocol.types import Attempt, ProcessId


@dataclass(slots=True)
class Ledger:
    """One epoch's hops. It is complete when each microbatch has exactly one living holder on each stage."""

    stages: int
    microbatches: int
    _holders: dict[tuple[int, int], tuple[ProcessId, Attempt]] = field(default_factory=dict)
    _orphans: dict[tuple[int, int], tuple[ProcessId, Attempt]] = field(default_factory=dict)
    _losses: dict[int, tuple[float, int]] = field(default_factory=dict)
    # Hops by whom they were passed on, as later stages have shown; and by whom the stage before has got a gradient.
    _passed_on: dict[tuple[int, int], ProcessId] = field(default_factory=dict)
    _returned_by: dict[tuple[int, int], ProcessId] = field(default_factory=dict)
    _entered: int = 0  # hops that had a holder when `unreported` was asked last
    retries: int = 0

    def done(self, sender: ProcessId, message: Done) -> None:
        """Enter a hop. Of two living processes that have accumulated it, the one of the higher attempt holds it.

        The other one's is an orphan, which may yet be needed.
        """
        key = (message.stage, message.microbatch.index)
        for handover in message.handovers:
            self._passed_on[handover.stage - 1, message.microbatch.index] = handover.giver
        if message.successor is not None:
            self._returned_by[message.stage + 1, message.microbatch.index] = message.successor
        holder = self._holders.get(key)
        if holder is not None and holder[0] == sender:
            return
        if holder is not None and holder[1] >= message.attempt:
            self._orphans[key] = (sender, message.attempt)
            return
        if holder is not None:
            self._orphans[key] = holder
        self._holders[key] = (sender, message.attempt)
        self.retries += message.attempt.repair > 0  # a denial costs nothing: only what was lost counts
        if message.stage == self.stages - 1:
            self._losses[message.microbatch.index] = (message.loss_sum, message.tokens)

    def gone(self, process: ProcessId) -> tuple[tuple[int, int], ...]:
        """Remove a failed holder. Returns its hops (stage, index) that no other process has accumulated."""
        self._orphans = {key: holder for key, holder in self._orphans.items() if holder[0] != process}
        for known in (self._passed_on, self._returned_by):
            for key in [key for key, who in known.items() if who == process]:
                del known[key]
        lost = [key for key, holder in self._holders.items() if holder[0] == process]
        for key in lost:
            del self._holders[key]
            if key in self._orphans:
                self._holders[key] = self._orphans.pop(key)
        return tuple(key for key in lost if key not in self._holders)

    def missing(self) -> tuple[tuple[int, int], ...]:
        """Return the hops (stage, index) that no process holds."""
        every = ((stage, index) for stage in range(self.stages) for index in range(self.microbatches))
        return tuple(key for key in every if key not in self._holders)

    def was_taken(self, index: int) -> bool:
        """Return whether the first stage has taken a microbatch from its trainer."""
        return (0, index) in self._holders or (0, index) in self._passed_on

    def unreported(self) -> dict[ProcessId, ProcessId]:
        """Return who has not reported a hop that it has had by what another stage has reported, and who has done that.

        It has passed it on to the next stage, or has given the stage before its gradient. None as long as hops are
        entered: it is asked each second, and looks through the whole step.
        """
        before, self._entered = self._entered, len(self._holders)
        if before != self._entered:
            return {}
        found: dict[ProcessId, ProcessId] = {}
        for known, place in ((self._returned_by, -1), (self._passed_on, 1)):
            for (stage, index), process in known.items():
                witness = self.holder(stage + place, index)
                if (stage, index) not in self._holders and stage >= 0 and witness is not None:
                    found[process] = witness
        return found

    def settle(self) -> None:
        """Drop the orphans: their holders are sent the manifest, and subtract them."""
        self._orphans.clear()

    @property
    def complete(self) -> bool:
        """Whether each hop has a holder."""
        return len(self._holders) == self.stages * self.microbatches

    @property
    def done_hops(self) -> int:
        """How many hops have a holder."""
        return len(self._holders)

    def entries(self) -> dict[ProcessId, tuple[tuple[int, Attempt], ...]]:
        """Return the manifest's part of each process that has one: (index, attempt), by index."""
        found: dict[ProcessId, list[tuple[int, Attempt]]] = {}
        for (_, index), (process, attempt) in self._holders.items():
            found.setdefault(process, []).append((index, attempt))
        return {process: tuple(sorted(own)) for process, own in found.items()}

    def holder(self, stage: int, index: int) -> ProcessId | None:
        """Return the process that has accumulated a hop; None: none has."""
        holder = self._holders.get((stage, index))
        return holder[0] if holder is not None else None

    def manifest(self) -> tuple[tuple[int, int, ProcessId, Attempt], ...]:
        """Return (stage, index, holder, attempt) of every hop, in order."""
        return tuple((stage, index, *self._holders[stage, index]) for stage, index in sorted(self._holders))

    @property
    def tokens(self) -> int:
        """Target tokens of the step."""
        return sum(tokens for _, tokens in self._losses.values())

    @property
    def loss(self) -> float:
        """Mean cross-entropy over the step's target tokens, added in the order of the microbatches."""
        total = sum(self._losses[index][0] for index in sorted(self._losses))
        return total / self.tokens if self.tokens else float("nan")
