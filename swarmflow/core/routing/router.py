"""The interface of all routers: a sender reports its measurements and asks for the peer of the next microbatch."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from swarmflow.core.protocol.types import ProcessId


@dataclass(frozen=True, slots=True)
class Choice:
    """The process to send to, and why it was chosen."""

    process: ProcessId
    reason: str


class Router(Protocol):
    """Chooses among the peers of one stage by what one sender has measured."""

    def begin_epoch(self, processes: Iterable[ProcessId]) -> None:
        """Begin an epoch with these peers, which hold nothing."""

    def add_peer(self, process: ProcessId) -> None:
        """Add a peer to the stage."""

    def remove_peer(self, process: ProcessId) -> None:
        """Remove a peer from the stage."""

    def choose(self, exclude: Collection[ProcessId] = (), source: ProcessId | None = None) -> Choice | None:
        """Return the next peer for a microbatch of this trainer; None if all are excluded."""

    def add_held(self, process: ProcessId, source: ProcessId | None, more: int) -> None:
        """Add `more` to the microbatches of this trainer that the peer holds; below 0 once one is done."""

    def set_pending(self, process: ProcessId, count: int) -> None:
        """Set the number of this sender's microbatches that the peer has not passed on yet."""

    def record_response(self, process: ProcessId, seconds: float, service_s: float | None) -> None:
        """Record the time from sending a microbatch until the peer passed it on. service_s: from its arrival."""

    def record_downstream(self, process: ProcessId, downstream_s: float) -> None:
        """Record the time of the best path beyond the peer, forth and back."""

    def record_transfer(self, process: ProcessId, seconds: float, now: float) -> None:
        """Record the transfer time of a microbatch."""

    def record_probe(self, process: ProcessId, seconds: float, now: float) -> None:
        """Record a probe's estimate of the transfer time."""

    def record_path(self, process: ProcessId, seconds: float) -> None:
        """Record the expected transfer time on a new path, which counts until a transfer is measured."""

    def has_transfer_time(self, process: ProcessId) -> bool:
        """Return whether the transfer time to the peer is known, so that no probe is needed."""

    @property
    def downstream_s(self) -> float:
        """The expected seconds of the best path from here, forth and back, as announced upstream."""
