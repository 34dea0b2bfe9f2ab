"""What a peer reports of itself."""

from __future__ import annotations

import asyncio
import resource
import sys

import pytest

from swarmflow.core.protocol.types import ProcessId
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.summary import PeerReport, others_can_read

HERE, LAN = "/ip4/127.0.0.1/tcp/7000/p2p/QmA", "/ip4/10.0.0.7/tcp/7000/p2p/QmA"


def worked() -> PeerReport:
    """Of a peer of the last stage that has also done a forward for another stage, and three hops twice."""
    metrics = Metrics()
    metrics.microbatches.at(1, "loss").inc(1200)
    metrics.microbatches.at(0, "forward").inc(34)
    metrics.microbatches.at(0, "backward").inc(34)
    metrics.microbatches.at(1, "recompute").inc(3)
    metrics.compute_seconds.at("loss").inc(30.0)
    metrics.compute_seconds.at("recompute").inc(0.5)
    metrics.settled_seconds.at("used").inc(29.0)
    metrics.settled_seconds.at("unused").inc(0.75)
    metrics.sent_bytes.at("Forward").inc(2_500_000)
    metrics.received_bytes.at("Backward").inc(1_000)
    return PeerReport(metrics, hop_tokens=100)


def test_a_summary_has_the_counts_of_the_process() -> None:
    summary = worked().summary([HERE])
    assert (summary.hops, summary.tokens) == (1234, 123_400)
    assert (summary.compute_s, summary.used_s, summary.wasted_s) == (30.5, 29.0, 0.75)
    assert (summary.sent_bytes, summary.received_bytes) == (2_500_000, 1_000)
    assert (summary.loading_bytes, summary.loading_total_bytes, summary.metrics_port) == (0, 0, 0)
    assert summary.reach == "unknown"
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    assert 50_000_000 < summary.memory_bytes < 1.01 * most


def loading(metrics: Metrics) -> tuple[float | None, float | None]:
    value = metrics.registry.get_sample_value
    return value("swarmflow_loading_bytes"), value("swarmflow_loading_total_bytes")


@pytest.mark.asyncio
async def test_what_is_loaded_is_in_it() -> None:
    report = PeerReport(Metrics())
    with report.loading.loading(1, 4) as progressed:
        progressed(ProcessId("QmDonor", 1), 3, 10)
        summary = report.summary([HERE])
        assert (summary.loading_bytes, summary.loading_total_bytes) == (3, 10)
        report.measure_loading()
        assert loading(report.metrics) == (3.0, 10.0)
        await asyncio.sleep(0)
    assert report.summary([HERE]).loading_total_bytes == 0
    report.measure_loading()
    assert loading(report.metrics) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("host", "addresses", "can"),
    [
        ("127.0.0.1", [HERE], True),
        ("localhost", [HERE], True),
        ("::1", [HERE], True),
        ("127.0.0.1", [HERE, LAN], False),
        ("127.0.0.1", ["/dns4/peer.example/tcp/7000/p2p/QmA"], False),
        ("0.0.0.0", [HERE, LAN], True),
        ("10.0.0.7", [LAN], True),
        ("peer.example", [LAN], True),
    ],
)
def test_metrics_on_the_loopback_interface_are_for_a_swarm_on_one_machine(
    host: str, addresses: list[str], can: bool
) -> None:
    assert others_can_read(host, addresses) == can
    metrics = Metrics()
    metrics.port = 9100
    assert PeerReport(metrics, host).summary(addresses).metrics_port == (9100 if can else 0)


def test_a_peer_tells_its_user_what_it_has_contributed() -> None:
    assert worked().contribution() == (
        "this peer has contributed 1,234 microbatches, 123,400 tokens, 30.5 s of computing, of which 29.0 s are in"
        " committed steps (sent 2.5 MB, received 1.0 kB)"
    )
    idle = PeerReport(Metrics(), hop_tokens=100)
    assert idle.contribution() == "this peer has computed no microbatch (sent 0 bytes, received 0 bytes)"
    idle.metrics.microbatches.at(0, "forward").inc()
    assert "contributed 1 microbatch, 100 tokens" in idle.contribution()
