"""Interleaved weighted round-robin: the next hop in proportion to measured speed (SWARM, Algorithm 1)."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.link_estimates import LinkEstimates
from swarmflow.core.routing.router import Choice


@dataclass(slots=True)
class _WeightedPeer:
    ema_s: float  # smoothed response time
    priority_s: float  # total expected time of the microbatches sent to it


class Iwrr:
    """The priority queue of SWARM's Algorithm 1: the peers of one stage, by the total expected time of their work.

    prior_s: epsilon of the paper, the response time that is assumed before the first measurement. Its gamma is GAMMA.

    Two deviations from the paper's pseudocode, both where it starves or floods a peer: a newcomer starts with the
    lowest total and the mean response time of the others instead of epsilon, which would give it all traffic until
    it had caught up with totals of hours; and the first measurement replaces epsilon instead of being smoothed into it.
    """

    probes = waits = False

    def __init__(self, prior_s: float = 1e-3) -> None:
        self.links = LinkEstimates()
        self.prior_s = prior_s
        self._peers: dict[ProcessId, _WeightedPeer] = {}
        self._queue: list[tuple[float, ProcessId]] = []  # heap of (priority_s, process); stale entries are skipped

    def begin_epoch(self, processes: Iterable[ProcessId]) -> None:
        """Begin an epoch with these peers of the stage; those that stay keep what was measured."""
        present = dict.fromkeys(processes)
        kept = {process: peer for process, peer in self._peers.items() if process in present}
        floor_s = min((peer.priority_s for peer in kept.values()), default=self.prior_s)
        mean_s = sum(peer.ema_s for peer in kept.values()) / len(kept) if kept else self.prior_s
        self._peers = {process: kept.get(process) or _WeightedPeer(mean_s, floor_s) for process in present}
        self._queue = [(peer.priority_s, process) for process, peer in self._peers.items()]
        heapq.heapify(self._queue)

    def go_on(self) -> None:
        """Do nothing: the total time of all work decides, in whichever epoch."""

    def add_peer(self, process: ProcessId) -> None:
        """Add a peer to the stage."""
        self.begin_epoch((*self._peers, process))

    def remove_peer(self, process: ProcessId) -> None:
        """Remove a peer from the stage (Algorithm 1, `ban_server`)."""
        self._peers.pop(process, None)

    def choose(self, exclude: Collection[ProcessId] = (), source: ProcessId | None = None) -> Choice | None:
        """Return the peer with the smallest total time, at a tie the smaller id; None: all are excluded."""
        excluded: list[tuple[float, ProcessId]] = []
        choice: Choice | None = None
        while self._queue and choice is None:
            priority_s, process = entry = heapq.heappop(self._queue)
            peer = self._peers.get(process)
            if peer is None or peer.priority_s != priority_s:
                continue
            if process in exclude:
                excluded.append(entry)
                continue
            peer.priority_s += peer.ema_s
            heapq.heappush(self._queue, (peer.priority_s, process))
            choice = Choice(process, f"smallest total time, {priority_s:.3f} s; {peer.ema_s:.3f} s a microbatch")
        for entry in excluded:
            heapq.heappush(self._queue, entry)
        return choice

    def add_held(self, process: ProcessId, source: ProcessId | None, more: int) -> None:
        """Do nothing: the total time of all work decides, finished or not."""

    def set_pending(self, process: ProcessId, count: int) -> None:
        """Do nothing: the total time of all work decides, finished or not."""

    def record_downstream(self, process: ProcessId, downstream_s: float) -> None:
        """Do nothing: only the next hop counts."""

    @property
    def downstream_s(self) -> float:
        """Return 0: the path beyond the next hop is not measured."""
        return 0.0

    def refresh(self, process: ProcessId) -> None:
        """Use the new response time of a peer, queue and network included."""
        peer, response_s = self._peers.get(process), self.links.response_s(process)
        if peer is not None and response_s is not None:
            peer.ema_s = max(self.prior_s, response_s)

    def seconds(self, process: ProcessId) -> float | None:
        """Return the smoothed response time; None: the peer does not serve the stage."""
        peer = self._peers.get(process)
        return None if peer is None else peer.ema_s
