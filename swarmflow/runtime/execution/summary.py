"""What a peer reports of itself: to those who watch the run while it works, to its own user at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from swarmflow.core.protocol.messages import PeerSummary
from swarmflow.files import readable_size
from swarmflow.runtime.execution.load_progress import LoadMeter
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.system import resident_bytes

SUMMARY_EVERY_S = 5.0  # a viewer sees who works at all; counts of the last seconds change nothing for it
_FIRST_PASSES = ("forward", "loss")


@dataclass
class PeerReport:
    """What a peer measures of itself, over all incarnations of its process."""

    metrics: Metrics
    metrics_host: str = "127.0.0.1"  # on which the metrics are served
    loading: LoadMeter = field(default_factory=LoadMeter)
    hop_tokens: int = 0  # target tokens of a microbatch; 0: the run is not known yet
    reach: str = "unknown"  # how others connect to it, as in PeerSummary

    def summary(self, addresses: Sequence[str]) -> PeerSummary:
        """Return what those who watch the run see. addresses: multiaddrs at which others may dial this process."""
        metrics, loading, hops = self.metrics, self.loading.progress, self._hops()
        return PeerSummary(
            hops=hops,
            tokens=hops * self.hop_tokens,
            compute_s=metrics.compute_seconds.total(),
            used_s=metrics.settled_seconds.total(outcome="used"),
            wasted_s=metrics.settled_seconds.total(outcome="unused"),
            sent_bytes=int(metrics.sent_bytes.total()),
            received_bytes=int(metrics.received_bytes.total()),
            memory_bytes=resident_bytes(),
            loading_bytes=loading.received_bytes if loading is not None else 0,
            loading_total_bytes=loading.total_bytes if loading is not None else 0,
            metrics_port=metrics.port if others_can_read(self.metrics_host, addresses) else 0,
            reach=self.reach,
        )

    def measure_loading(self) -> None:
        """Set the metrics of the stage that is loaded now."""
        loading = self.loading.progress
        self.metrics.loading_bytes.set(loading.received_bytes if loading is not None else 0)
        self.metrics.loading_total_bytes.set(loading.total_bytes if loading is not None else 0)

    def reached(self, reach: str) -> None:
        """Set how others connect to this process, as in PeerSummary."""
        self.reach = reach

    def contribution(self) -> str:
        """Return the line for the user at the end: what this process has done for the run."""
        metrics, hops = self.metrics, self._hops()
        sent, received = int(metrics.sent_bytes.total()), int(metrics.received_bytes.total())
        traffic = f"sent {readable_size(sent)}, received {readable_size(received)}"
        if not hops:
            return f"this peer has computed no microbatch ({traffic})"
        used_s, spent_s = metrics.settled_seconds.total(outcome="used"), metrics.compute_seconds.total()
        work = f"{hops:,} microbatch{'es' if hops > 1 else ''}, {hops * self.hop_tokens:,} tokens"
        time = f"{spent_s:.1f} s of computing, of which {used_s:.1f} s are in committed steps"
        return f"this peer has contributed {work}, {time} ({traffic})"

    def _hops(self) -> int:
        return int(sum(self.metrics.microbatches.total(direction=direction) for direction in _FIRST_PASSES))


def others_can_read(metrics_host: str, addresses: Sequence[str]) -> bool:
    """Return whether a process that reaches this one at its addresses (multiaddrs) can read its metrics too.

    Metrics that are served on the loopback interface are for the processes of this machine, where the whole swarm that
    dials this process has to be.
    """
    return not _is_loopback(metrics_host) or all(_is_loopback(host) for host in hosts_of(addresses))


def hosts_of(addresses: Sequence[str]) -> list[str]:
    """Return the IP addresses in multiaddrs, without those of relays; a host name stays as it is."""
    return [text.split("/")[2] for text in addresses if text.count("/") > 2 and "/p2p-circuit" not in text]


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
