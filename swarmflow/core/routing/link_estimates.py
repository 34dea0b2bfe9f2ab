"""What one process has measured of its links, and of the peers at their other ends, all by one rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.own_queue import OwnQueue
from swarmflow.core.routing.smoothing import smoothed

UNTRUE = 10.0  # times what a peer says that its passes take: then what they took counts
UPLINK = 0.5  # of what a tensor takes on the fastest link: where tensors are never closer they share an uplink
AGED_S = 600.0  # the next measurement replaces an older estimate


@dataclass(slots=True)
class _Estimate:
    """A smoothed time."""

    seconds: float
    at_s: float  # of the last measurement
    provisional: bool = False  # from a probe, for a new path, or due for renewal: the next measurement replaces it


@dataclass(slots=True)
class _Estimates:
    """The estimates of one quantity, by process."""

    by_process: dict[ProcessId, _Estimate] = field(default_factory=dict)

    def record(self, process: ProcessId, seconds: float, now: float) -> None:
        """Record a measurement: it is smoothed into the former estimate, unless that is provisional or too old."""
        former = self.by_process[process].seconds if self.lasts(process, now) else None
        self.by_process[process] = _Estimate(smoothed(former, seconds), now)

    def lasts(self, process: ProcessId, now: float) -> bool:
        """Return whether there is an estimate to which the next measurement is added, which else stands alone."""
        return self.is_fresh(process, now) and not self.by_process[process].provisional

    def set(self, process: ProcessId, seconds: float, now: float) -> None:
        """Record what needs no smoothing."""
        self.by_process[process] = _Estimate(seconds, now)

    def guess(self, process: ProcessId, seconds: float, now: float) -> None:
        """Record a provisional estimate."""
        self.by_process[process] = _Estimate(seconds, now, provisional=True)

    def seconds(self, process: ProcessId) -> float | None:
        """Return the estimate for a process; None: there is none."""
        found = self.by_process.get(process)
        return None if found is None else found.seconds

    def is_fresh(self, process: ProcessId, now: float) -> bool:
        """Return whether there is an estimate that is not too old."""
        found = self.by_process.get(process)
        return found is not None and now - found.at_s <= AGED_S


@dataclass(frozen=True, slots=True)
class PeerWork:
    """What a peer told of its work: the seconds of all, and of one microbatch (0: not known). at_s: when it did."""

    seconds: float
    each_s: float
    at_s: float


UNKNOWN_WORK = PeerWork(0.0, 0.0, -math.inf)


@dataclass(slots=True)
class LinkEstimates:
    """The estimates of one sender for its receivers: the peers of the next stage, and for rates those of its own.

    Every quantity follows the same rule: exponential smoothing, in which a measurement replaces what a probe has found,
    and an estimate to which nothing was added for AGED_S. Until then an old estimate counts.

    A transfer time is what a tensor takes to a receiver, behind those of other senders; what it has waited behind
    others of this one says nothing of the receiver (`own_queue`). A rate is what the link alone can carry: tensors to
    one process go one after the other, so one that was sent during a transfer counts from the end of that.
    """

    _transfers: _Estimates = field(default_factory=_Estimates, init=False)  # of a boundary tensor, by the path in use
    _bytes: _Estimates = field(default_factory=_Estimates, init=False)  # seconds a byte, on the direct link
    _tensor_bytes: int = field(default=0, init=False)  # size of a boundary tensor
    _own_queue: OwnQueue = field(default_factory=OwnQueue, init=False)
    _responses: _Estimates = field(default_factory=_Estimates, init=False)  # from sending to passing on
    _services: _Estimates = field(default_factory=_Estimates, init=False)  # of one pass, as the peer tells it
    _passes: _Estimates = field(default_factory=_Estimates, init=False)  # the same as measured: its part of the queue
    _works: dict[ProcessId, PeerWork] = field(default_factory=dict, init=False)
    _any_gap_s: float | None = field(default=None, init=False)  # from one acknowledged tensor to the next
    _acknowledged_s: float = field(default=-math.inf, init=False)  # when the last one was
    _any_response_s: float | None = field(default=None, init=False)  # over all peers
    _any_pass_s: float | None = field(default=None, init=False)  # of one pass, as measured, over all peers
    _used_s: dict[ProcessId, float] = field(default_factory=dict, init=False)  # when the last tensor arrived there
    _direct_s: dict[ProcessId, float] = field(default_factory=dict, init=False)  # when the last one took no relay
    now_s: float = field(default=0.0, init=False)  # of the last measurement

    def keep(self, processes: frozenset[ProcessId]) -> None:
        """Forget all other processes."""
        for kind in (self._transfers, self._bytes, self._responses, self._services, self._passes):
            kind.by_process = {process: found for process, found in kind.by_process.items() if process in processes}
        self._used_s = {process: at_s for process, at_s in self._used_s.items() if process in processes}
        self._works = {process: work for process, work in self._works.items() if process in processes}
        self._direct_s = {process: at_s for process, at_s in self._direct_s.items() if process in processes}

    def record_transfer(self, process: ProcessId, size_bytes: int, seconds: float, now: float, direct: bool) -> None:
        """Record the time from sending a tensor until it was acknowledged. direct: it took no relay."""
        self.now_s = self._used_s[process] = now
        seconds -= self._own_queue.waited_s(now - seconds, now)
        self._transfers.record(process, seconds, now)
        self._any_gap_s = smoothed(self._any_gap_s, min(seconds, now - self._acknowledged_s))
        self._acknowledged_s = now
        if direct:
            alone_s = min(seconds, now - self._direct_s.get(process, -math.inf))
            self._direct_s[process] = now
            if size_bytes > 0 and alone_s > 0:
                self._bytes.record(process, alone_s / size_bytes, now)
                self._tensor_bytes = size_bytes

    def record_probe(self, process: ProcessId, size_bytes: int, seconds: float, now: float) -> None:
        """Record the transfer time of a boundary tensor as a probe has found it, where no transfer was measured.

        For the rate the fastest of several probes counts: other traffic can only delay one.
        """
        self.now_s, self._tensor_bytes = now, size_bytes
        if seconds <= 0:
            return
        probed = self._bytes.seconds(process) if self.is_probed(process) else None
        byte_s = min(seconds / size_bytes, math.inf if probed is None else probed)
        for kind, value in ((self._transfers, seconds), (self._bytes, byte_s)):
            former = kind.by_process.get(process)
            if former is None or former.provisional or not kind.is_fresh(process, now):
                kind.guess(process, value, now)

    def record_path(self, process: ProcessId, seconds: float) -> None:
        """Record the expected transfer time on a new path, which the next measurement replaces."""
        self._transfers.guess(process, seconds, self.now_s)

    def record_service(self, process: ProcessId, seconds: float, now: float) -> None:
        """Record the time of a pass as a peer tells it, smoothed by itself; 0: it does not know."""
        if seconds > 0.0:
            if self._services.seconds(process) is None:
                self._passes.by_process.pop(process, None)
            self._services.set(process, seconds, now)

    def record_work(self, process: ProcessId, seconds: float, each_s: float, now: float) -> None:
        """Record what all takes that a peer has to do, and what one microbatch takes there, as it tells."""
        self.now_s = now
        self._works[process] = PeerWork(seconds, each_s, now)

    def peer_work(self, process: ProcessId) -> PeerWork:
        """Return what a peer told last of its work."""
        return self._works.get(process, UNKNOWN_WORK)

    def work_s(self, process: ProcessId) -> float:
        """Return what is left of that by now, if the peer has computed since; 0: it is not known."""
        work = self.peer_work(process)
        return max(0.0, work.seconds - (self.now_s - work.at_s))

    def record_pass(self, process: ProcessId, seconds: float, now: float) -> None:
        """Record what a pass took: its part of the queue. The first one, too, is added to what the peer tells."""
        self._any_pass_s = smoothed(self._any_pass_s, seconds)
        announced_s = self._services.seconds(process)
        if announced_s is not None and not self._passes.lasts(process, now):
            self._passes.set(process, announced_s, now)
        self._passes.record(process, seconds, now)

    def record_response(self, process: ProcessId, seconds: float, now: float) -> None:
        """Record the time from sending a microbatch until the peer passed it on."""
        self.now_s = now
        self._responses.record(process, seconds, now)
        self._any_response_s = smoothed(self._any_response_s, seconds)

    def renew(self, process: ProcessId) -> None:
        """Let the next measurements of a peer replace the former ones: it was not used for long."""
        for kind in (self._transfers, self._passes):
            if process in kind.by_process:
                kind.by_process[process].provisional = True

    def transfer_s(self, process: ProcessId) -> float | None:
        """Return the transfer time of a boundary tensor by the path in use; None: not known."""
        return self._transfers.seconds(process)

    def usual_transfer_s(self, process: ProcessId) -> float:
        """Return the transfer time to a process, of an unmeasured one the mean of the others; 0: none is known."""
        known_s = [found.seconds for found in self._transfers.by_process.values()]
        own_s = self.transfer_s(process)
        return own_s if own_s is not None else fmean(known_s) if known_s else 0.0

    def is_fresh(self, process: ProcessId) -> bool:
        """Return whether the transfer time is known, and was measured or probed lately."""
        return self._transfers.is_fresh(process, self.now_s)

    def service_s(self, process: ProcessId) -> float | None:
        """Return the time of one pass, as the peer tells it; None: it is not known.

        Where it tells nothing, or passes take far longer than it tells, it is what they took. A single one says little:
        what the peer had put off, such as gradients of parameters, may come before it and is not in its queue.
        """
        announced_s, measured_s = self._services.seconds(process), self._passes.seconds(process)
        if announced_s is None or (measured_s is not None and measured_s > UNTRUE * announced_s):
            return measured_s
        return announced_s

    def response_s(self, process: ProcessId) -> float | None:
        """Return the time from sending a microbatch until the peer passes it on; None: it is not known."""
        return self._responses.seconds(process)

    @property
    def any_response_s(self) -> float | None:
        """The same over all peers."""
        return self._any_response_s

    @property
    def any_pass_s(self) -> float | None:
        """What one pass takes, as measured over all peers; None: none has passed anything on."""
        return self._any_pass_s

    def is_probed(self, process: ProcessId) -> bool:
        """Return whether the rate is known from probes alone, lately."""
        found = self._bytes.by_process.get(process)
        return found is not None and found.provisional and self._bytes.is_fresh(process, self.now_s)

    def link_s(self, process: ProcessId) -> float | None:
        """Return what a boundary tensor takes on the direct link when nothing else is sent; None: it is not known."""
        found = self._bytes.seconds(process)
        return None if found is None else found * self._tensor_bytes

    @property
    def fastest_s(self) -> float | None:
        """What a boundary tensor takes on the fastest of the links, when nothing else is sent; None: none is known."""
        least = min((found.seconds for found in self._bytes.by_process.values()), default=None)
        return None if least is None else least * self._tensor_bytes

    @property
    def has_uplink(self) -> bool:
        """Whether all tensors leave one after the other, as far as their arrivals tell."""
        return self._own_queue.gap_s > UPLINK * (self.fastest_s or math.inf)

    @property
    def sending_s(self) -> float:
        """What this process takes to send one of many boundary tensors, over all its links; 0: it is not known.

        That is the time between two that are acknowledged, which the fastest link bounds where few are sent.
        """
        times = (self.fastest_s, self._any_gap_s)
        return min((seconds for seconds in times if seconds is not None), default=0.0)

    def rate(self, process: ProcessId) -> float | None:
        """Return the rate of the direct link, in bytes/s; None: it is not known."""
        found = self._bytes.seconds(process)
        return None if found is None else 1.0 / found

    def used_s(self, process: ProcessId) -> float | None:
        """Return when the last tensor arrived at a process; None: none did."""
        return self._used_s.get(process)
