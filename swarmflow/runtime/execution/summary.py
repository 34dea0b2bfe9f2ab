"""What a peer reports of itself to those who watch the run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from swarmflow.core.protocol.messages import PeerSummary
from swarmflow.runtime.execution.metrics import Metrics

SUMMARY_EVERY_S = 5.0  # a viewer sees who works at all; counts of the last seconds change nothing for it
_FIRST_PASSES = ("forward", "loss")


def summary_of(metrics: Metrics, hop_tokens: int, addresses: Sequence[str]) -> PeerSummary:
    """Return the summary of this process.

    hop_tokens: target tokens of a microbatch. addresses: the multiaddrs by which others reach this process.
    """
    hops = sum(metrics.microbatches.total(direction=direction) for direction in _FIRST_PASSES)
    return PeerSummary(
        hops=int(hops),
        tokens=int(hops) * hop_tokens,
        compute_s=metrics.compute_seconds.total(),
        used_s=metrics.settled_seconds.total(outcome="used"),
        wasted_s=metrics.settled_seconds.total(outcome="unused"),
        sent_bytes=int(metrics.sent_bytes.total()),
        received_bytes=int(metrics.received_bytes.total()),
        memory_bytes=resident_bytes(),
        metrics_port=metrics.port,
        reach=reach_of(addresses),
    )


def resident_bytes() -> int:
    """Return the memory that this process has in use, in bytes; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def reach_of(addresses: Sequence[str]) -> str:
    """Return how others reach a process with these addresses, as far as they tell.

    A public address that the process lists may be shut by a firewall, which only a process that dials it can find out.
    """
    if any("/p2p-circuit" in address for address in addresses):
        return "relay"
    hosts = [address.split("/")[2] for address in addresses if address.startswith(("/ip4/", "/ip6/"))]
    return "local" if hosts and not any(ip_address(host).is_global for host in hosts) else "unknown"
