"""The metrics of a process for Prometheus: every metric of swarmflow, in one registry, served over HTTP.

`docs/metrics.md` lists the same metrics for users; `make generate` writes its tables from here.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Generic, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, Info, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase

from swarmflow import __version__
from swarmflow.runtime.execution.account import Outcome
from swarmflow.runtime.execution.metrics_server import MakePage, MetricsServer
from swarmflow.runtime.execution.progress import ProgressWatch
from swarmflow.runtime.transport.frames import FrameErrorKind
from swarmflow.runtime.transport.hello import LANES

LABEL_SETS_MAX: Final = 256
OTHER: Final = "other"
_PASS_SECONDS_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STEP_END_SECONDS_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
_STEP_SECONDS_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)
# Series that are there from the start, at 0: Prometheus takes a counter's first value for no increase.
_DENIALS: Final = ("full", "draining", "stage", "stale", "invalid", "orphan")
_RETRIES: Final = ("gone", *_DENIALS)
_REFUSALS: Final = (*get_args(FrameErrorKind), "hello", "message", "tensor", "piece")
_OUTCOMES: Final = get_args(Outcome)
# What a repair is, by the name of the count of a machine; retries for another reason than a death are no repairs.
REPAIRS: Final[Mapping[str, str]] = {
    "adoptions": "adopted",
    "recomputations": "recomputed",
    "orphans_subtracted": "subtracted",
    "ballots_again": "reduced_again",
    "steps_restarted": "restarted",
    "rollbacks": "rolled_back",
}
RESENT: Final = "resent"
_FLOW_COSTS: Final = ("before", "least")
_DECISIONS: Final = (
    "adoptions",
    "hops_lost",
    "orphans_subtracted",
    "steps_restarted",
    "rollbacks",
    "resynchronisations",
    "states_damaged",
    "evictions",
    "recomputations",
    "ballots_again",
    "reductions_kept",
    "successions",
    "lineages",
    "lineages_given_up",
    "rebalances",
    "detours",
    "not_finite",
    "put_out",
    "stalled",
    "standstills",
    "accusations",
    "pauses",
    "entered",
)

_Metric = TypeVar("_Metric", bound=MetricWrapperBase)


class Labelled(Generic[_Metric]):
    """The series of one metric, told apart by labels, of which there are never more than `LABEL_SETS_MAX`.

    A label may come from the network (a reason, a stage), and each new value would cost memory here and in Prometheus.
    """

    def __init__(self, family: _Metric, labels: tuple[str, ...]) -> None:
        self.labels = labels
        self._family = family
        self._series: dict[tuple[str | int, ...], _Metric] = {}

    def at(self, *values: str | int) -> _Metric:
        """Return the series with these label values, one a label; beyond the limit, the one where all are `other`.

        Found in one look: it is called for every frame, and `labels` takes a lock and makes strings of all values.
        """
        series = self._series.get(values)
        if series is None:
            full = len(self._series) >= LABEL_SETS_MAX
            series = self._family.labels(*([OTHER] * len(self.labels) if full else values))
            if not full:
                self._series[values] = series
        return series

    def total(self, **labels: str) -> float:
        """Return the sum of the series of a counter that have these labels."""
        return sum(
            sample.value
            for metric in self._family.collect()
            for sample in metric.samples
            if sample.name.endswith("_total") and labels.items() <= sample.labels.items()
        )


class Metrics:
    """The metrics of one process, each an attribute: `metrics.version.set(3)`, `metrics.peers.at(stage).set(2)`.

    Any thread may change them. A value that is not known yet (the loss before the first step) is not-a-number, not 0.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.port = 0  # at which the metrics are served; 0: they are not
        self._pages: dict[str, MakePage] = {}
        self._server = MetricsServer(self.registry, self._pages)
        self._add_work()
        self._add_run()
        self._add_network()
        self._add_process()
        self._begin_at_zero()

    def _add_work(self) -> None:
        self.microbatches = self._counters("microbatches", "Hops computed by this peer", "stage", "direction")
        self.compute_seconds = self._counters("compute_seconds", "Time spent computing", "direction")
        self.settled_seconds = self._counters("settled_seconds", "Used, in vain, or done twice", "outcome")
        self.pass_seconds = Labelled(
            Histogram(
                "swarmflow_pass_seconds",
                "Time to compute one hop",
                ("direction",),
                registry=self.registry,
                buckets=_PASS_SECONDS_BUCKETS,
            ),
            ("direction",),
        )
        self.reduce_seconds = self._histogram("reduce_seconds", "Time from an all-reduce's beginning to its norm here")
        self.update_seconds = self._histogram("update_seconds", "Time spent computing a step's end: sums, norm, update")
        self.queue_length = self._gauge("queue_length", "Microbatches accepted and waiting to be computed")
        self.held_microbatches = self._gauge("held_microbatches", "Microbatches in memory")
        self.capacity_microbatches = self._gauge("capacity_microbatches", "Most microbatches that fit in memory")
        self.journal_bytes = self._gauge("journal_bytes", "Boundary tensors kept for repairs in this step")
        self.loading_bytes = self._gauge("loading_bytes", "Received so far of the stage that this peer loads")
        self.loading_total_bytes = self._gauge("loading_total_bytes", "Size of the stage that this peer loads, else 0")

    def _add_run(self) -> None:
        self.tokens = self._counter("tokens", "Target tokens of the steps committed since this process started")
        self.step = self._gauge("step", "Step in progress, from 0")
        self.version = self._gauge("version", "Steps committed")
        self.loss = self._gauge("loss", "Mean cross-entropy of the last step, in nats a token", math.nan)
        self.validation_loss = self._gauge("validation_loss", "Validation loss, in nats a token", math.nan)
        self.grad_norm = self._gauge("grad_norm", "Global gradient norm of the last step before clipping", math.nan)
        self.learning_rate = self._gauge("learning_rate", "Learning rate of the last step", math.nan)
        self.step_seconds = self._histogram(
            "step_seconds", "Time from a step's opening to its commit", _STEP_SECONDS_BUCKETS
        )
        self.peers = self._gauges("peers", "Live peers known to this process", "stage")
        self.moves = self._counter("moves", "Times that this peer was given another stage")

    def _add_network(self) -> None:
        self.sent_bytes = self._counters("sent_bytes", "Bytes written to other processes", "kind")
        self.received_bytes = self._counters("received_bytes", "Bytes read from other processes", "kind")
        self.codec_bytes = self._counters("codec_bytes", "Boundary tensors encoded here", "tensor", "form")
        self.retries = self._counters(
            "retries", "Hops that this process sent again, or asked others for (asked, later)", "reason"
        )
        self.routed = self._counters("routed", "Choices of the next peer by a router that follows flows", "by")
        self.flow_cost_seconds = self._counters(
            "flow_cost_seconds", "Link costs of the windows of flows that this peer has optimised", "when"
        )
        self.denials = self._counters("denials", "Microbatches that this peer refused", "reason")
        self.frames_refused = self._counters("frames_refused", "Bad frames from the network", "reason")
        self.queued_bytes = self._gauges("queued_bytes", "Bytes that wait to be sent", "lane")
        self.decisions = self._counters("decisions", "Rare decisions: adoptions, restarts, roll-backs", "kind")
        self.repairs = self._counters("repairs", "What this process did again, or spared, for the dead", "kind")
        self.suspected = self._counter("suspected", "Times that the leader took a process for dead")

    def _begin_at_zero(self) -> None:
        for family, values in (
            (self.denials, _DENIALS),
            (self.retries, _RETRIES),
            (self.frames_refused, _REFUSALS),
            (self.decisions, _DECISIONS),
            (self.settled_seconds, _OUTCOMES),
            (self.repairs, (RESENT, *REPAIRS.values())),
            (self.flow_cost_seconds, _FLOW_COSTS),
        ):
            for value in values:
                family.at(value)
        for lane in LANES:
            self.queued_bytes.at(lane)

    def _add_process(self) -> None:
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        build = Info("swarmflow_build", "Versions of swarmflow and of Python", registry=self.registry)
        build.info({"version": __version__, "python": platform.python_version()})
        self._process = Info("swarmflow_process", "Role, name and run id of this process", registry=self.registry)
        self.progress = ProgressWatch()
        stalled = self._gauge(
            "stalled_seconds", "Time without progress although there is work; 0: progress, or no work"
        )
        stalled.set_function(self.progress.stalled_s)

    def describe_process(self, role: str, name: str, run: str) -> None:
        """Describe this process: its role (`peer`, `trainer`), its libp2p name and the id of its run."""
        self._process.info({"role": role, "name": name, "run": run})

    def count(self, name: str, label: str, amount: float) -> None:
        """Count what a machine has decided, under the name that it gives to it."""
        match name:
            case "retries":
                self.retries.at(label).inc(amount)
                if label == "gone":
                    self.repairs.at(RESENT).inc(amount)
            case "routed":
                self.routed.at(label).inc(amount)
            case "denials":
                self.denials.at(label).inc(amount)
            case "frames_refused":
                self.frames_refused.at(label).inc(amount)
            case "flow_cost":
                self.flow_cost_seconds.at(label).inc(amount)
            case "reduce_seconds":
                self.reduce_seconds.observe(amount)
            case "gone":
                self.suspected.inc(amount)
            case "moves":
                self.moves.inc(amount)
            case _:
                self.decisions.at(f"{name}:{label}" if label else name).inc(amount)
                if name in REPAIRS:
                    self.repairs.at(REPAIRS[name]).inc(amount)

    def serve(self, port: int, host: str = "127.0.0.1", token: str | None = None) -> int:
        """Serve `/metrics` on `host`:`port` (0: any free port) from daemon threads until `close`; the port in use.

        token: that a client has to send; None: everybody may read. Raises NetworkError where the address is taken or
        cannot be used.
        """
        self.port = self._server.start(port, host, token)
        return self.port

    @contextmanager
    def pages(self, pages: Mapping[str, MakePage]) -> Iterator[None]:
        """Serve these pages too, by path, inside the `with` block."""
        self._pages.update(pages)
        try:
            yield
        finally:
            for path in pages:
                self._pages.pop(path, None)

    def close(self) -> None:
        """Stop serving and free the port, if this process serves."""
        self._server.close()

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"swarmflow_{name}", text, registry=self.registry)

    def _gauge(self, name: str, text: str, unknown: float = 0.0) -> Gauge:
        gauge = Gauge(f"swarmflow_{name}", text, registry=self.registry)
        gauge.set(unknown)
        return gauge

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _STEP_END_SECONDS_BUCKETS) -> Histogram:
        return Histogram(f"swarmflow_{name}", text, registry=self.registry, buckets=buckets)

    def _counters(self, name: str, text: str, *labels: str) -> Labelled[Counter]:
        return Labelled(Counter(f"swarmflow_{name}", text, labels, registry=self.registry), labels)

    def _gauges(self, name: str, text: str, *labels: str) -> Labelled[Gauge]:
        return Labelled(Gauge(f"swarmflow_{name}", text, labels, registry=self.registry), labels)
