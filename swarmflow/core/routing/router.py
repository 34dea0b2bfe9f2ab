"""The interface of all routers: a sender reports its measurements and asks for the peer of the next microbatch."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.iwrr import Choice


class Router(Protocol):
    """Chooses among the peers of one stage by what one sender has measured."""

    def announce(self, processes: Iterable[ProcessId]) -> None:
        """Begin an epoch with these peers, which hold nothing."""

    def enter(self, process: ProcessId) -> None:
        """Add a peer to the stage."""

    def ban(self, process: ProcessId) -> None:
        """Never choose this peer again in this epoch."""

    def choose(self, exclude: Collection[ProcessId] = (), source: ProcessId | None = None) -> Choice | None:
        """Return the next peer for a microbatch of this trainer; None if all are excluded."""

    def add_held(self, process: ProcessId, source: ProcessId | None, more: int) -> None:
        """Add `more` to the microbatches of this trainer that the peer holds; below 0 once one is done."""

    def set_pending(self, process: ProcessId, count: int) -> None:
        """Set the number of this sender's microbatches that the peer has not passed on yet."""

    def measured(self, process: ProcessId, seconds: float, inside_s: float | None) -> None:
        """Record the time from sending a microbatch until the peer passed it on; inside_s: from its arrival."""

    def downstream_cost(self, process: ProcessId, downstream_s: float) -> None:
        """Record the time of the best path beyond the peer, forth and back."""

    def arrived(self, process: ProcessId, seconds: float, now: float) -> None:
        """Record the transfer time of a microbatch."""

    def probed(self, process: ProcessId, seconds: float, now: float) -> None:
        """Record a probe's estimate of the transfer time."""

    def rerouted(self, process: ProcessId, seconds: float) -> None:
        """Record the transfer time on another path than before."""

    def is_measured(self, process: ProcessId) -> bool:
        """Return whether the link to the peer needs no probe."""

    @property
    def downstream_s(self) -> float:
        """The expected seconds of the best path from here, forth and back, as announced upstream."""
