"""One microbatch that was handed to the next stage: where it is, as far as its sender knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.types import Microbatch, ProcessId, Ref

REPAIR = 1000  # attempts are numbered repair * REPAIR + try, so that a repair's are higher than all that the dead made


@dataclass(slots=True)
class InFlight:
    """One microbatch on its way through the next stage.

    repair: somebody may hold it already. hint: who probably does. source: the trainer whose it is. successor: to whom
    `holder` has passed it on. reserving: the holder is asked for room, and has not got the bytes yet. unasked: it was
    sent them without, and has not answered. asked: peers whose answer to an Adopt is awaited. data: the input of the
    hop, None once it was evicted; restored: it was brought back to be sent again. settled: its gradient has been here
    before. late_s: when the holder has had it for too long without passing it on, or nothing was heard of it since;
    patience: how often that was, of this microbatch.
    """

    microbatch: Microbatch
    data: Ref | None
    targets: Ref
    attempt: int
    repair: bool = False
    hint: ProcessId | None = None
    source: ProcessId | None = None
    holder: ProcessId | None = None
    reserving: bool = False
    unasked: bool = False
    successor: ProcessId | None = None
    asked: set[ProcessId] = field(default_factory=set)
    sent_at_s: float = 0.0
    arrived_s: float | None = None
    late_s: float = 0.0
    patience: int = 0
    measured: bool = False
    returned: bool = False
    restored: bool = False
    settled: bool = False

    @property
    def bodies(self) -> tuple[Ref, ...]:
        """The bytes that are here; a Forward carries both."""
        return (self.targets,) if self.data is None else (self.data, self.targets)

    @property
    def size_bytes(self) -> int:
        """Of the bytes that are here."""
        return self.targets.size_bytes + (0 if self.data is None else self.data.size_bytes)

    @property
    def awaited(self) -> bool:
        """Whether somebody has it and has not passed it on yet."""
        return self.held and not self.measured

    @property
    def held(self) -> bool:
        """Whether it takes up somebody's room, as far as is known."""
        return self.holder is not None and not self.returned

    @property
    def watched(self) -> bool:
        """Whether there is somebody from whom word is due."""
        return bool(self.asked) or self.held


def next_repair(attempt: int) -> int:
    """The first attempt of the repair after the one that this attempt belongs to."""
    return (attempt // REPAIR + 1) * REPAIR
