"""One microbatch in flight: what its sender knows about where it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.types import Microbatch, ProcessId, Ref

REPAIR = 1000  # attempts are repair * REPAIR + try, so that a repair's are above all attempts of the dead peer


@dataclass(slots=True)
class InFlight:
    """One microbatch that was dispatched to the next stage."""

    microbatch: Microbatch
    data: Ref | None  # input of the hop; None: evicted
    targets: Ref
    attempt: int
    repair: bool = False  # a peer may hold it already
    hint: ProcessId | None = None  # the peer that probably holds it
    source: ProcessId | None = None  # the trainer that formed it
    holder: ProcessId | None = None
    reserving: bool = False  # the holder was asked for a slot, the bytes are not sent yet
    unasked: bool = False  # the bytes were sent without asking, and the holder has not answered yet
    successor: ProcessId | None = None  # to whom the holder has passed it on
    asked: set[ProcessId] = field(default_factory=set)  # peers whose answer to an Adopt is awaited
    sent_at_s: float = 0.0
    arrived_s: float | None = None
    late_s: float = 0.0  # from then on the holder is late
    patience: int = 0  # how often it was late; the deadline doubles with each
    measured: bool = False  # the holder's time has been measured
    returned: bool = False  # the gradient has returned
    restored: bool = False  # the evicted input was brought back, to be re-sent
    settled: bool = False  # the gradient has returned once, perhaps from an earlier holder

    @property
    def bodies(self) -> tuple[Ref, ...]:
        """The tensors that are still here; a Forward carries both."""
        return (self.targets,) if self.data is None else (self.data, self.targets)

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors that are still here."""
        return self.targets.size_bytes + (0 if self.data is None else self.data.size_bytes)

    @property
    def awaited(self) -> bool:
        """Whether a holder has not passed it on yet."""
        return self.held and not self.measured

    @property
    def held(self) -> bool:
        """Whether it takes a slot at its holder."""
        return self.holder is not None and not self.returned

    @property
    def watched(self) -> bool:
        """Whether an answer or a gradient is due."""
        return bool(self.asked) or self.held


def next_repair(attempt: int) -> int:
    """Return the first attempt of the next repair after this attempt."""
    return (attempt // REPAIR + 1) * REPAIR
