"""The metrics of a whole swarm from its view, in Prometheus' text format, with a bounded number of series.

Volunteers behind a NAT cannot be scraped, so that this is the only place where they appear. The view holds what other
people's machines report: a value that is no number counts as none, and labels come from fixed sets or are cut.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from swarmflow.monitoring import families
from swarmflow.monitoring.families import Family

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PEERS_MAX: Final = 100  # peers with series of their own; all others are added up
OTHER: Final = "other"
LABEL_CHARACTERS_MAX: Final = 64
NUMBER_MAX: Final = 1e30
RUN_PHASES: Final = ("gathering", "running", "validating", "unmeasured", "saving", "finished")
PEER_PHASES: Final = ("waiting", "loading", "failed", "ready", "serving", "draining", "barred")
REACHES: Final = ("public", "punched", "relay", "local", "unknown")

View = Mapping[str, Any]
Peer = Mapping[str, Any]


def swarm_metrics(view: View) -> bytes:
    """Return the metrics of the swarm that a view (docs/view.md) shows."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SwarmCollector(view))
    return generate_latest(registry)


class _SwarmCollector(Collector):
    """Makes the metrics of one view."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._stages = peers_of(view)
        self._summaries = {stage: [_summary(peer) for peer in peers] for stage, peers in self._stages}

    def collect(self) -> Iterator[Metric]:
        """Yield every family of `families.FAMILIES` that the view has values for."""
        yield from self._run()
        yield from self._of_stages()
        yield from self._of_links()
        yield from self._of_peers()

    def _run(self) -> Iterator[Metric]:
        view = self._view
        name, run = _label(view.get("run")), _label(view.get("run_id"))
        info = InfoMetricFamily(families.RUN_INFO.full_name, families.RUN_INFO.text)
        info.add_metric((), {"name": name, "run": run})
        yield info
        present = view.get("phase")
        yield _gauge(families.PHASE, [((phase,), float(phase == present)) for phase in RUN_PHASES])
        yield _gauge(families.TRAINERS, [((), float(len(_items(view, "trainers"))))])
        for family in families.RUN:
            value = _number(view.get(family.key), math.nan)
            yield _gauge(family, [((), value)])

    def _of_stages(self) -> Iterator[Metric]:
        phases: list[tuple[tuple[str, ...], float]] = []
        for stage, peers in self._stages:
            counts = Counter(_one_of(peer.get("phase"), PEER_PHASES, OTHER) for peer in peers)
            phases += [((stage, phase), float(counts[phase])) for phase in (*PEER_PHASES, OTHER)]
        yield _gauge(families.PEERS, phases)
        yield _gauge(
            families.REPORTING,
            [((stage,), float(sum(map(bool, summaries)))) for stage, summaries in self._summaries.items()],
        )
        reaches = Counter(
            _one_of(summary.get("reach"), REACHES, "unknown")
            for summaries in self._summaries.values()
            for summary in summaries
        )
        yield _gauge(families.REACH, [((reach,), float(reaches[reach])) for reach in REACHES])
        for family, extreme in ((families.LOWEST_VERSION, min), (families.HIGHEST_VERSION, max)):
            yield _gauge(
                family,
                [
                    ((stage,), extreme(_number(peer.get("version")) for peer in peers))
                    for stage, peers in self._stages
                    if peers
                ],
            )
        for family in families.STAGE_SUMS:
            yield _gauge(family, [((stage,), _sum(peers, family.key)) for stage, peers in self._stages])
        for family in families.STAGE_SUMMARY_SUMS:
            sums = [((stage,), _sum(summaries, family.key)) for stage, summaries in self._summaries.items()]
            yield _gauge(family, sums)

    def _of_links(self) -> Iterator[Metric]:
        """Yield the times of the links that the step's microbatches took, by the stage that they lead to."""
        at = {name: stage for stage, peers in self._stages for peer in peers if isinstance(name := peer.get("id"), str)}
        links: dict[str, list[tuple[float, str, str]]] = {}
        for link in _items(self._view, "links"):
            if not isinstance(link, Sequence) or len(link) != 4 or not isinstance(link[1], str):
                continue
            stage, seconds = at.get(link[1]), _number(link[3], math.nan)
            if stage is not None and not math.isnan(seconds):
                links.setdefault(stage, []).append((seconds, _label(link[0]), _label(link[1])))
        slowest = {stage: max(each) for stage, each in links.items()}
        # One of two peers may be slow, and half of the links with it: the mean of the middle two would hide that.
        medians = {stage: statistics.median_low(seconds for seconds, _, _ in each) for stage, each in links.items()}
        yield _gauge(families.MEDIAN_LINK, [((stage,), median) for stage, median in medians.items()])
        yield _gauge(
            families.SLOWEST_LINK,
            [((stage, sender, receiver), seconds) for stage, (seconds, sender, receiver) in slowest.items()],
        )

    def _of_peers(self) -> Iterator[Metric]:
        own, rest = self._chosen()
        others = [_summary(peer) for peer in rest]
        for family in families.PEER_VALUES:
            samples = [(labels, _number(peer.get(family.key))) for labels, peer in own]
            yield _gauge(family, samples)
        for family in families.PEER_SUMMARY_VALUES:
            samples = [(labels, _number(_summary(peer).get(family.key))) for labels, peer in own if _summary(peer)]
            if others:
                samples.append(((OTHER, OTHER), _sum(others, family.key)))
            yield _gauge(family, samples) if family.kind == "gauge" else _counter(family, samples)

    def _chosen(self) -> tuple[list[tuple[tuple[str, ...], Peer]], list[Peer]]:
        """Return the peers with series of their own, with their labels, and all others.

        First come the peers that Prometheus cannot reach, since it has nothing else of them. The order by name is the
        same at each scrape, so that a series does not come and go with others' work. Two peers of the same labels, of
        which one lies, have one series.
        """
        peers: list[tuple[tuple[str, ...], Peer]] = [
            ((_label(peer.get("id")), stage), peer) for stage, present in self._stages for peer in present
        ]
        peers.sort(key=lambda each: (_number(_summary(each[1]).get("metrics_port")) > 0, each[0]))
        own = list({labels: (labels, peer) for labels, peer in reversed(peers[:PEERS_MAX])}.values())
        return own, [peer for _, peer in peers[PEERS_MAX:]]


def peers_of(view: View) -> list[tuple[str, list[Peer]]]:
    """Return the number of each stage, and its peers; what is no stage or no peer is left out."""
    return [
        (str(number), [peer for peer in _items(stage, "peers") if isinstance(peer, Mapping)])
        for number, stage in enumerate(_items(view, "stages"))
        if isinstance(stage, Mapping)
    ]


def _gauge(family: Family, samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    metric = GaugeMetricFamily(family.full_name, family.text, labels=family.labels)
    for labels, value in samples:
        metric.add_metric(labels, value)
    return metric


def _counter(family: Family, samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    metric = CounterMetricFamily(family.full_name, family.text, labels=family.labels)
    for labels, value in samples:
        metric.add_metric(labels, value)
    return metric


def _summary(peer: Peer) -> Mapping[str, Any]:
    summary = peer.get("summary")
    return summary if isinstance(summary, dict) else {}


def _items(where: Mapping[str, Any], key: str) -> Sequence[Any]:
    found = where.get(key)
    return found if isinstance(found, list | tuple) else ()


def _sum(objects: Iterable[Mapping[str, Any]], key: str) -> float:
    return math.fsum(_number(each.get(key)) for each in objects)


def _number(value: object, missing: float = 0.0) -> float:
    """Return a number; `missing` where the value is none, is not finite, or is larger than any count."""
    if (type(value) is float or type(value) is int) and -NUMBER_MAX < value < NUMBER_MAX:
        return value
    return missing


def _label(value: object) -> str:
    return value[:LABEL_CHARACTERS_MAX] if isinstance(value, str) else ""


def _one_of(value: object, known: Sequence[str], otherwise: str) -> str:
    return value if isinstance(value, str) and value in known else otherwise
