"""The metrics: served, documented, bounded."""

from __future__ import annotations

import re
import socket
import struct
import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.metrics import LABEL_SETS_MAX, OTHER, Metrics

CORE = Path(__file__).parents[2] / "swarmflow" / "core"


def scrape(port: int) -> dict[str, Metric]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_names_follow_the_conventions() -> None:
    for family in Metrics().registry.collect():
        assert re.fullmatch(r"(swarmflow|process|python_gc)_[a-z_]+", family.name)
        assert not family.name.endswith(("_ms", "_kib", "_minutes"))


def test_values_are_served_and_the_port_is_free_after_closing() -> None:
    metrics = Metrics()
    port = metrics.serve(0)
    metrics.microbatches.at(2, "forward").inc(3)
    metrics.version.set(7)
    metrics.describe_process("peer", "12D3Koo", "shakespeare")
    families = scrape(port)
    metrics.close()
    forward = next(s for s in families["swarmflow_microbatches"].samples if s.name.endswith("_total"))
    assert (forward.labels, forward.value) == ({"stage": "2", "direction": "forward"}, 3.0)
    assert families["swarmflow_version"].samples[0].value == 7.0
    process = families["swarmflow_process_info"].samples[0]
    assert process.labels == {"role": "peer", "name": "12D3Koo", "run": "shakespeare"}
    assert families["process_resident_memory_bytes"].samples[0].value > 0
    again = Metrics()
    assert again.serve(port) == port
    again.close()


def test_what_is_not_known_yet_is_not_zero() -> None:
    registry = Metrics().registry
    for name in ("loss", "validation_loss", "grad_norm", "learning_rate"):
        value = registry.get_sample_value(f"swarmflow_{name}")
        assert value is not None
        assert value != value


def test_what_may_go_wrong_is_counted_from_zero() -> None:
    registry = Metrics().registry
    for sample, labels in (
        ("retries_total", {"reason": "gone"}),
        ("denials_total", {"reason": "full"}),
        ("frames_refused_total", {"reason": "checksum"}),
        ("decisions_total", {"kind": "rollbacks"}),
        ("queued_bytes", {"lane": "bulk"}),
    ):
        assert registry.get_sample_value(f"swarmflow_{sample}", labels) == 0.0


def test_every_decision_that_the_core_counts_is_counted_from_zero() -> None:
    registry = Metrics().registry
    sources = "".join(path.read_text(encoding="utf-8") for path in CORE.rglob("*.py"))
    kinds = set(re.findall(r'Count\("(\w+)"(?:, amount=[^)]*\)?)?\)', sources))
    kinds -= {"gone", "moves", "reduce_seconds"}  # these are metrics of their own
    assert {"rollbacks", "entered"} <= kinds
    for kind in kinds:
        assert registry.get_sample_value("swarmflow_decisions_total", {"kind": kind}) == 0.0, kind


def test_what_the_machines_count_is_counted_and_repairs_apart() -> None:
    metrics = Metrics()
    for name, label in (("retries", "gone"), ("retries", "full"), ("adoptions", ""), ("rollbacks", "")):
        metrics.count(name, label, 1.0)
    metrics.count("reduce_seconds", "", 0.75)
    metrics.count("flow_cost", "least", 2.5)
    value = metrics.registry.get_sample_value
    repairs = {kind: value("swarmflow_repairs_total", {"kind": kind}) for kind in ("resent", "adopted", "rolled_back")}
    assert repairs == {"resent": 1.0, "adopted": 1.0, "rolled_back": 1.0}
    assert value("swarmflow_retries_total", {"reason": "full"}) == 1.0
    assert value("swarmflow_decisions_total", {"kind": "rollbacks"}) == 1.0
    assert (value("swarmflow_reduce_seconds_count"), value("swarmflow_reduce_seconds_sum")) == (1.0, 0.75)
    assert value("swarmflow_flow_cost_seconds_total", {"when": "least"}) == 2.5


def test_two_processes_worth_of_metrics_do_not_mix() -> None:
    one, other = Metrics(), Metrics()
    one.tokens.inc(5)
    assert other.registry.get_sample_value("swarmflow_tokens_total") == 0.0


@pytest.mark.parametrize("port", [None, 65536], ids=["taken", "impossible"])
def test_a_port_that_cannot_be_used_is_one_line(port: int | None) -> None:
    first = Metrics()
    taken = first.serve(0)
    with pytest.raises(NetworkError, match="cannot serve metrics on") as caught:
        Metrics().serve(port or taken)
    first.close()
    assert "\n" not in str(caught.value)


def test_a_host_that_is_none_is_one_line() -> None:
    with pytest.raises(NetworkError, match=r"cannot serve metrics on a\.\.b:0"):
        Metrics().serve(0, "a..b")


def test_who_goes_away_without_asking_is_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    metrics = Metrics()
    port = metrics.serve(0)
    with socket.create_connection(("127.0.0.1", port)) as visitor:
        visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends with a reset
    scrape(port)  # asked later, so that the visitor has its thread by now
    for thread in threading.enumerate():
        if "process_request" in thread.name:
            thread.join(10)
    metrics.close()
    assert capfd.readouterr().err == ""


def test_labels_from_the_network_cannot_fill_the_memory() -> None:
    metrics = Metrics()
    for number in range(LABEL_SETS_MAX + 50):
        metrics.received_bytes.at(f"kind {number}").inc()
    metrics.received_bytes.at("kind 0").inc()
    [family] = [each for each in metrics.registry.collect() if each.name == "swarmflow_received_bytes"]
    totals = {sample.labels["kind"]: sample.value for sample in family.samples if sample.name.endswith("_total")}
    assert len(totals) == LABEL_SETS_MAX + 1
    assert totals[OTHER] == 50.0
    assert totals["kind 0"] == 2.0
