"""The microbatches in flight to the next stage: the bytes kept for re-sending them, and when their holders are late."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from swarmflow.core.pipeline.in_flight import FlightState, InFlight
from swarmflow.core.protocol.types import Attempt, Microbatch, ProcessId, Ref


@dataclass(slots=True)
class FlightTable:
    """One sender's microbatches in flight. Their bytes stay here until the step is committed."""

    entries: dict[Microbatch, InFlight] = field(default_factory=dict, init=False)
    starved: dict[Microbatch, None] = field(default_factory=dict, init=False)  # in the order of their loss
    size_bytes: int = field(default=0, init=False)
    _deadlines: list[tuple[float, Microbatch]] = field(default_factory=list, init=False)  # heap by late_s

    def clear(self) -> tuple[Ref, ...]:
        """Forget all of them; return their tensors."""
        refs = tuple(ref for entry in self.entries.values() for ref in entry.bodies)
        self.entries.clear()
        self.starved.clear()
        self.size_bytes = 0
        self._deadlines.clear()
        return refs

    def add(self, entry: InFlight) -> None:
        """Add a microbatch, in the place of an earlier attempt at it."""
        former = self.entries.get(entry.microbatch)
        self.size_bytes += entry.size_bytes - (0 if former is None else former.size_bytes)
        self.entries[entry.microbatch] = entry

    def remove(self, microbatch: Microbatch) -> InFlight | None:
        """Remove a microbatch and return it."""
        entry = self.entries.pop(microbatch, None)
        self.starved.pop(microbatch, None)
        if entry is not None:
            self.size_bytes -= entry.size_bytes
        return entry

    def find(self, microbatch: Microbatch, attempt: Attempt) -> InFlight | None:
        """Return the entry of a microbatch, if this is its present attempt."""
        entry = self.entries.get(microbatch)
        return entry if entry is not None and entry.attempt == attempt else None

    def held_by(self, process: ProcessId, microbatch: Microbatch, attempt: Attempt) -> InFlight | None:
        """Return the entry of a microbatch, if this process holds its present attempt."""
        entry = self.find(microbatch, attempt)
        return entry if entry is not None and entry.holder == process else None

    def holder(self, microbatch: Microbatch) -> ProcessId | None:
        """Return the known holder of a microbatch."""
        entry = self.entries.get(microbatch)
        return None if entry is None or entry.reserving else entry.holder

    def has_input(self, microbatch: Microbatch) -> bool:
        """Return whether the input of a dispatched microbatch is here."""
        entry = self.entries.get(microbatch)
        return entry is not None and entry.data is not None

    def starve(self, entry: InFlight) -> None:
        """Note that a microbatch without holder waits for its input to be computed again."""
        entry.move(FlightState.STARVED)
        self.starved[entry.microbatch] = None

    def evict(self, microbatch: Microbatch) -> Ref | None:
        """Give up the input of a microbatch whose gradient has returned: only a repair needs it.

        The targets stay: they are small beside an activation, and a repair need not ask for them.
        """
        entry = self.entries.get(microbatch)
        if entry is None or not entry.returned:
            return None
        data, entry.data = entry.data, None
        self.size_bytes -= 0 if data is None else data.size_bytes
        return data

    def refill(self, entry: InFlight, data: Ref) -> bool:
        """Take an evicted input back; return whether the microbatch was waiting for it."""
        assert entry.data is None, "only an evicted input is refilled"
        entry.data = data
        self.size_bytes += data.size_bytes
        if entry.state is not FlightState.STARVED:
            return False
        del self.starved[entry.microbatch]
        entry.move(FlightState.WAITING)
        entry.restored = True
        return True

    def expect(self, entry: InFlight, late_s: float) -> None:
        """Set the time from which its holder is late."""
        entry.late_s = late_s
        heapq.heappush(self._deadlines, (late_s, entry.microbatch))

    def first_late(self) -> InFlight | None:
        """Return the watched entry that is late first; drop the deadlines of others."""
        while self._deadlines:
            late_s, microbatch = self._deadlines[0]
            entry = self.entries.get(microbatch)
            if entry is not None and entry.watched and entry.late_s == late_s:
                return entry
            heapq.heappop(self._deadlines)
        return None

    @property
    def next_deadline_s(self) -> float | None:
        """The earliest deadline that was set, which may be void by now."""
        return self._deadlines[0][0] if self._deadlines else None
