"""Interleaved weighted round-robin: the next hop in proportion to measured speed (SWARM, Algorithm 1)."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from swarmflow.core.protocol.types import ProcessId


@dataclass(frozen=True, slots=True)
class Choice:
    """The process to send to, and why it was chosen."""

    process: ProcessId
    reason: str


@dataclass(slots=True)
class _WeightedPeer:
    ema_s: float
    priority_s: float
    measured: bool = False


class Iwrr:
    """One queue of SWARM's Algorithm 1: the peers of one stage, by the total time of what they were given.

    smoothing: gamma of the paper (0.1). prior_s: epsilon, the time taken for granted before the first measurement.

    Two deviations from the paper's pseudocode, both where it starves or floods a peer: a newcomer starts at the lowest
    priority of those present instead of at epsilon (which would give it all traffic until it had caught up with the
    total of hours), with their mean time; and the first measurement replaces epsilon instead of being smoothed into it.
    """

    def __init__(self, smoothing: float = 0.1, prior_s: float = 1e-3) -> None:
        self.smoothing = smoothing
        self.prior_s = prior_s
        self._peers: dict[ProcessId, _WeightedPeer] = {}
        self._queue: list[tuple[float, ProcessId]] = []  # by priority; what is out of date is passed over

    def announce(self, processes: Iterable[ProcessId]) -> None:
        """These peers, and no others, serve the stage from now on; a banned one that is named is back."""
        present = dict.fromkeys(processes)
        kept = {process: peer for process, peer in self._peers.items() if process in present}
        floor_s = min((peer.priority_s for peer in kept.values()), default=self.prior_s)
        mean_s = sum(peer.ema_s for peer in kept.values()) / len(kept) if kept else self.prior_s
        self._peers = {process: kept.get(process) or _WeightedPeer(mean_s, floor_s) for process in present}
        self._queue = [(peer.priority_s, process) for process, peer in self._peers.items()]
        heapq.heapify(self._queue)

    def enter(self, process: ProcessId) -> None:
        """One more serves the stage."""
        self.announce((*self._peers, process))

    def ban(self, process: ProcessId) -> None:
        """Never choose this peer again until it is announced again (Algorithm 1, `ban_server`)."""
        self._peers.pop(process, None)

    def choose(self, exclude: Collection[ProcessId] = (), source: ProcessId | None = None) -> Choice | None:
        """The peer with the smallest total time; ties go to the smaller id. None: nobody is left."""
        passed_over: list[tuple[float, ProcessId]] = []
        choice: Choice | None = None
        while self._queue and choice is None:
            priority_s, process = first = heapq.heappop(self._queue)
            peer = self._peers.get(process)
            if peer is None or peer.priority_s != priority_s:
                continue
            if process in exclude:
                passed_over.append(first)
                continue
            peer.priority_s += peer.ema_s
            heapq.heappush(self._queue, (peer.priority_s, process))
            choice = Choice(process, f"smallest total time, {priority_s:.3f} s; {peer.ema_s:.3f} s a microbatch")
        for entry in passed_over:
            heapq.heappush(self._queue, entry)
        return choice

    def carries(self, process: ProcessId, source: ProcessId | None, more: int) -> None:
        """Nothing follows from it: the total of what it was given decides."""

    def awaits(self, process: ProcessId, count: int) -> None:
        """Nothing follows from it: the total of what it was given decides."""

    def downstream_cost(self, process: ProcessId, downstream_s: float) -> None:
        """Nothing follows from it: one hop alone is looked at."""

    @property
    def downstream_s(self) -> float:
        """Nothing is known of the way beyond."""
        return 0.0

    def measured(self, process: ProcessId, seconds: float, inside_s: float | None = None) -> None:
        """A response took this long (queue and network included)."""
        peer = self._peers.get(process)
        if peer is None:
            return
        gamma = self.smoothing if peer.measured else 1.0
        peer.ema_s = max(self.prior_s, gamma * seconds + (1 - gamma) * peer.ema_s)
        peer.measured = True

    def arrived(self, process: ProcessId, seconds: float, now: float) -> None:
        """Nothing follows from it: what counts is when it has been passed on."""

    def probed(self, process: ProcessId, seconds: float, now: float) -> None:
        """Nothing follows from it."""

    def rerouted(self, process: ProcessId, seconds: float) -> None:
        """Nothing follows from it: it will show in how soon microbatches are passed on."""

    def seconds(self, process: ProcessId) -> float | None:
        """The smoothed response time, or None for a stranger."""
        peer = self._peers.get(process)
        return None if peer is None else peer.ema_s

    def knows(self, process: ProcessId) -> bool:
        """Nobody needs to be probed."""
        return True
