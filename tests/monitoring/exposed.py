"""Every series that a process and a trainer's `/metrics/swarm` expose, with their labels."""

from __future__ import annotations

from functools import cache

from prometheus_client.parser import text_string_to_metric_families

from swarmflow.monitoring.swarm_metrics import swarm_metrics
from swarmflow.runtime.execution.metrics import Labelled, Metrics
from tests.monitoring.views import peer, view


@cache
def exposed_series() -> dict[str, set[str]]:
    """The labels of each series, taken from a registry in which each has been touched."""
    metrics = Metrics()
    metrics.describe_process("peer", "name", "run")
    for value in vars(metrics).values():
        if isinstance(value, Labelled):
            value.at(*value.labels)
    swarm = text_string_to_metric_families(swarm_metrics(view([peer("a")], links=[["t", "a", 1, 0.1]])).decode())
    series: dict[str, set[str]] = {}
    for family in (*metrics.registry.collect(), *swarm):
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series
