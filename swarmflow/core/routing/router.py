"""The interface of all routers: which peer of the next stage a sender's next microbatch goes to."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.link_estimates import LinkEstimates


@dataclass(frozen=True, slots=True)
class Choice:
    """The process to send to, and why it was chosen.

    alternatives: others that may be as good, the likeliest first. Where peers are asked before anything is sent, some
    of these are too.
    """

    process: ProcessId
    reason: str
    alternatives: tuple[ProcessId, ...] = ()


class Router(Protocol):
    """Chooses among the peers of one stage by what one sender has measured."""

    @property
    def links(self) -> LinkEstimates:
        """What this sender has measured; after a change of an estimate call `refresh`."""

    @property
    def probes(self) -> bool:
        """Whether it needs the transfer times of links on which nothing was sent."""

    @property
    def waits(self) -> bool:
        """Whether a microbatch may wait for a full peer that will be done sooner than a free one."""

    def begin_epoch(self, processes: Iterable[ProcessId]) -> None:
        """Begin an epoch with these peers, which hold nothing."""

    def go_on(self) -> None:
        """Begin an epoch with the same peers and what they hold: it was begun ahead."""

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

    def refresh(self, process: ProcessId) -> None:
        """Use the new estimates for a peer."""

    def record_downstream(self, process: ProcessId, downstream_s: float) -> None:
        """Record the time of the best path beyond the peer, forth and back."""

    @property
    def downstream_s(self) -> float:
        """The expected seconds of the best path from here, forth and back, as announced upstream."""
