"""docker/prometheus.yml: promtool takes it, and its limits bound strangers and no honest peer."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from swarmflow.runtime.execution.account import Direction
from swarmflow.runtime.execution.metrics import LABEL_SETS_MAX, Metrics
from swarmflow.runtime.transport.wire import Wire
from tests.monitoring.exposed import exposed_series

PROMTOOL = shutil.which("promtool")
DOCKER = Path(__file__).parents[2] / "docker"
CONFIG = yaml.safe_load((DOCKER / "prometheus.yml").read_text(encoding="utf-8"))
[JOB] = [job for job in CONFIG["scrape_configs"] if job["job_name"] == "peer"]
TARGET_LABELS = 6  # the name, instance and job, and those of `targets`: peer, role and run


def busiest() -> Metrics:
    """The metrics of a peer that has counted everything that there is, each message in each way, in as many stages."""
    metrics = Metrics()
    metrics.describe_process("peer", "Qm" + "n" * 44, "0123456789abcdef")
    for direction in get_args(Direction):
        metrics.compute_seconds.at(direction)
        metrics.pass_seconds.at(direction)
    for stage in range(LABEL_SETS_MAX):
        metrics.peers.at(stage)
        for direction in get_args(Direction):
            metrics.microbatches.at(stage, direction)
    for name in (*(kind.__name__ for kind in get_args(Wire)), "unknown"):
        metrics.sent_bytes.at(name)
        metrics.received_bytes.at(name)
        for kind in ("messages_ignored", "messages_refused", "messages_raised"):
            metrics.count(kind, name, 1)
    return metrics


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here; on Debian: apt-get install prometheus")
def test_promtool_takes_the_configuration(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump({**CONFIG, "rule_files": [str(DOCKER / "prometheus-rules.yml")]}), encoding="utf-8")
    done = subprocess.run([PROMTOOL, "check", "config", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_honest_peer_stays_far_below_the_limits() -> None:
    text = generate_latest(busiest().registry).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert 1000 < len(samples) < JOB["sample_limit"] / 2
    assert max(len(sample.labels) for sample in samples) + TARGET_LABELS <= JOB["label_limit"]
    assert max(len(value) for sample in samples for value in sample.labels.values()) < JOB["label_value_length_limit"]
    assert JOB["body_size_limit"] == "4MB"
    assert len(text) < 1e6


def test_series_of_the_whole_swarm_come_from_trainers_alone() -> None:
    [rule] = JOB["metric_relabel_configs"]
    assert (rule["source_labels"], rule["action"]) == (["__name__"], "drop")
    dropped = {name for name in exposed_series() if name.startswith("swarmflow_swarm_")}
    pattern = re.compile(rule["regex"])
    assert dropped
    assert all(pattern.fullmatch(name) for name in dropped | {"swarmflow:live_peers", "ALERTS", "ALERTS_FOR_STATE"})
    assert not any(pattern.fullmatch(name) for name in exposed_series().keys() - dropped)
