"""Prometheus' HTTP service discovery: the peers whose metrics can be read, and nothing that is no target."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swarmflow.monitoring.targets import targets
from tests.monitoring.views import peer, view


def hosts(of: dict[str, Any]) -> list[str]:
    return [target for group in json.loads(targets(of)) for target in group["targets"]]


def test_peers_that_serve_metrics_are_listed() -> None:
    listed = json.loads(targets(view([peer("a", port=9400), peer("b")], [peer("c", port=9401)])))
    assert listed == [
        {"targets": ["10.0.0.7:9400"], "labels": {"role": "peer", "peer": "a", "run": "shakespeare"}},
        {"targets": ["10.0.0.7:9401"], "labels": {"role": "peer", "peer": "c", "run": "shakespeare"}},
    ]


@pytest.mark.parametrize(
    ("address", "target"),
    [("2001:db8::7", "[2001:db8::7]:9400"), ("host.example", "host.example:9400"), ("::1", "[::1]:9400")],
)
def test_addresses_are_written_as_prometheus_reads_them(address: str, target: str) -> None:
    assert hosts(view([{**peer("a", port=9400), "address": address}])) == [target]


@pytest.mark.parametrize(
    "address", ["", "a/b", "user@host", "host:80", "-x", "a b", "a?b", "x" * 300, '::1%]"x ', "fe80::1%eth0", None, 7]
)
def test_what_is_no_host_is_no_target(address: object) -> None:
    assert hosts(view([{**peer("a", port=9400), "address": address}])) == []


@pytest.mark.parametrize("port", [0, -1, 65536, "80", None, 80.5, True])
def test_what_is_no_port_is_no_target(port: object) -> None:
    assert hosts(view([peer("a", metrics_port=port)])) == []


@pytest.mark.parametrize("summary", [None, "text", []])
def test_a_peer_without_a_summary_is_no_target(summary: object) -> None:
    assert hosts(view([{**peer("a"), "summary": summary}])) == []


@pytest.mark.parametrize("broken", [{}, {"stages": None}, {"stages": [None, 1, {"peers": 2}, {"peers": [None, 3]}]}])
def test_a_view_without_stages_or_peers_has_no_targets(broken: dict[str, Any]) -> None:
    assert hosts(broken) == []
