"""The recording and alerting rules for Prometheus: one table for the rules' file and for docs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal

LIVE: Final = 'swarmflow_swarm_peers{phase=~"ready|serving|draining"}'
# Several trainers show the same swarm: a rule takes the largest value, and not the sum over their instances.
LIVE_BY_STAGE: Final = f"max by (stage) (sum by (instance, stage) ({LIVE}))"


@dataclass(frozen=True)
class RecordingRule:
    """A series that Prometheus works out. text: what it is."""

    name: str
    expr: str
    text: str


@dataclass(frozen=True)
class Alert:
    """A condition that a person should know of. after: how long it has to last. advice: what to do."""

    name: str
    expr: str
    after: str
    severity: Literal["info", "warning", "critical"]
    summary: str
    advice: str


def _quantile(name: str, labels: str, text: str) -> RecordingRule:
    by = ", ".join(filter(None, ("le", labels)))
    expr = f"histogram_quantile(0.95, sum by ({by}) (rate(swarmflow_{name}_bucket[5m])))"
    return RecordingRule(f"swarmflow:{name}:p95", expr, text)


def _increase_from_nothing(series: str, during: str) -> str:
    """Return a condition that series have grown, also those that were not there: `increase` misses a first value."""
    return f"sum({series}) - (sum({series} offset {during}) or vector(0)) > 0"


RECORDINGS: Final = (
    RecordingRule("swarmflow:tokens:rate1m", "max(rate(swarmflow_tokens_total[1m]))", "Tokens/s of committed steps"),
    RecordingRule("swarmflow:live_peers", LIVE_BY_STAGE, "Peers of a stage that are ready, serve or drain"),
    RecordingRule(
        "swarmflow:compute:utilisation",
        "sum by (instance) (rate(swarmflow_compute_seconds_total[1m]))",
        "Share of the time that a peer computes, over its thread of computation",
    ),
    RecordingRule(
        "swarmflow:compute:wasted_ratio",
        'sum(rate(swarmflow_settled_seconds_total{outcome="unused"}[5m])) '
        "/ sum(rate(swarmflow_settled_seconds_total[5m]))",
        "Share of the computed seconds that are in no step",
    ),
    RecordingRule(
        "swarmflow:peer:wasted_ratio",
        'sum by (peer) (rate(swarmflow_swarm_peer_wasted_seconds_total{peer!="other"}[10m])) '
        '/ sum by (peer) (rate(swarmflow_swarm_peer_compute_seconds_total{peer!="other"}[10m]) > 0)',
        "The same for a peer, as it reports it to the leader",
    ),
    RecordingRule(
        "swarmflow:compression:ratio",
        'sum by (tensor) (rate(swarmflow_codec_bytes_total{form="plain"}[5m])) '
        '/ sum by (tensor) (rate(swarmflow_codec_bytes_total{form="encoded"}[5m]))',
        "Bytes of boundary tensors before the codec over those behind it",
    ),
    RecordingRule(
        "swarmflow:flow_cost:ratio",
        'sum(rate(swarmflow_flow_cost_seconds_total{when="before"}[10m])) '
        '/ sum(rate(swarmflow_flow_cost_seconds_total{when="least"}[10m]))',
        "Link costs of the windows that were optimised over the least possible ones; 1: nothing to gain",
    ),
    RecordingRule(
        "swarmflow:repairs:rate5m", "sum by (kind) (rate(swarmflow_repairs_total[5m]))", "Repairs a second by kind"
    ),
    _quantile("pass_seconds", "direction", "95% of the hops are computed within this time"),
    _quantile("reduce_seconds", "", "95% of the all-reduces take at most this time"),
    _quantile("update_seconds", "", "95% of the step ends are computed within this time"),
    _quantile("step_seconds", "", "95% of the steps take at most this time"),
)

ALERTS: Final = (
    Alert(
        "StageWithoutPeer",
        f"{LIVE_BY_STAGE} == 0",
        "1m",
        "critical",
        "Stage {{ $labels.stage }} has no peer: the run waits.",
        "Start a peer; with `--stage auto` the leader gives it this stage.",
    ),
    Alert(
        "StageWithOnePeer",
        f"{LIVE_BY_STAGE} == 1",
        "1m",
        "warning",
        "Stage {{ $labels.stage }} has a single peer: its death takes the run back to a checkpoint.",
        "Start another peer.",
    ),
    Alert(
        "NoProgress",
        "max(changes(swarmflow_swarm_version[10m])) == 0 and max(swarmflow_swarm_version) < max(swarmflow_swarm_steps)",
        "5m",
        "critical",
        "No step was committed in the last 10 minutes.",
        "`swarmflow status` says what the run waits for. Raise the 10 minutes where a step takes that long.",
    ),
    Alert(
        "NoSwarm",
        "absent(swarmflow_swarm_version)",
        "2m",
        "critical",
        "No trainer tells how the swarm is: none is reachable, or none leads.",
        "Look at the trainers' logs. It fires after a run has finished too, once its processes have ended.",
    ),
    Alert(
        "ProcessStalled",
        "swarmflow_stalled_seconds > 300",
        "0s",
        "warning",
        "{{ $labels.instance }} has had work to do for 5 minutes, and made no progress.",
        "Its log has the reason; the leader puts such a peer out. Restart the process.",
    ),
    Alert(
        # The leader puts a hung peer out long before `ProcessStalled` fires, and then its own series are gone.
        "PeerStoodStill",
        'sum(increase(swarmflow_decisions_total{kind=~"stalled|standstills"}[1h])) > 0',
        "0s",
        "warning",
        "A process had work to do and showed no progress: the leader put it out, or the run waited for it.",
        "The leader's log names it and says what it had to do. Repeated for one: restart it, and check its machine.",
    ),
    Alert(
        "LossDiverges",
        "max(swarmflow_swarm_loss) > 1.5 * min(min_over_time(swarmflow_swarm_loss[1h]))",
        "5m",
        "warning",
        "The loss is 50% above the lowest of the last hour.",
        "Lower the learning rate, and go on from an earlier export.",
    ),
    Alert(
        "ValueNotFinite",
        'sum(increase(swarmflow_decisions_total{kind="not_finite"}[10m])) > 0',
        "0s",
        "warning",
        "A step started over, since a value was not-a-number or infinite.",
        "The leader's log names the peer and the layer. Repeated on several peers: lower the learning rate.",
    ),
    Alert(
        "PeersDisagree",
        'sum(increase(swarmflow_decisions_total{kind=~"resynchronisations|states_damaged"}[10m])) > 0',
        "0s",
        "warning",
        "The state of a peer differed from that of its stage, or from what it had been, and was loaded anew.",
        "Repeated for one peer: its memory or its device is faulty.",
    ),
    Alert(
        "AllReduceFails",
        'sum(increase(swarmflow_decisions_total{kind="ballots_again"}[10m])) '
        '+ sum(increase(swarmflow_frames_refused_total{reason="piece"}[10m])) > 2',
        "0s",
        "warning",
        "Several all-reduces were begun again in the last 10 minutes.",
        "The leader's log names the peers that were waited for.",
    ),
    Alert(
        "PeerWastesWork",
        "swarmflow:peer:wasted_ratio > 0.2",
        "10m",
        "warning",
        "More than 20% of what peer {{ $labels.peer }} computes is in no step.",
        "It is too slow or too far away for its stage: its hops come too late.",
    ),
    Alert(
        "SlowLink",
        "max by (stage) (swarmflow_swarm_stage_slowest_link_seconds) > 0.5 and max by (stage) "
        "(swarmflow_swarm_stage_slowest_link_seconds) > 5 * max by (stage) (swarmflow_swarm_stage_median_link_seconds)",
        "5m",
        "warning",
        "A link to stage {{ $labels.stage }} takes more than 5 times as long for a tensor as the median link.",
        "swarmflow_swarm_stage_slowest_link_seconds names both ends.",
    ),
    Alert(
        "DiskPause",
        'sum(increase(swarmflow_decisions_total{kind="pauses"}[10m])) > 0',
        "0s",
        "critical",
        "The run pauses: no disk takes a copy of the version.",
        "Free space on the trainers' disks.",
    ),
    Alert(
        "JournalFull",
        'sum(increase(swarmflow_decisions_total{kind="evictions"}[10m])) > 0',
        "0s",
        "info",
        "Peers drop bytes that they keep for repairs, so that a death costs more computation.",
        "Raise --journal-bytes-max.",
    ),
    Alert(
        "BadFrames",
        "sum(increase(swarmflow_frames_refused_total[10m])) > 10",
        "0s",
        "warning",
        "More than 10 frames of the last 10 minutes were refused.",
        "The reason label tells a faulty link from a hostile process.",
    ),
    Alert(
        "RolledBack",
        'sum(increase(swarmflow_decisions_total{kind="rollbacks"}[1h])) > 0',
        "0s",
        "warning",
        "The run went back to an earlier version, since a stage lost all its peers.",
        "Start more peers, or have more steps written with `checkpoint_every`.",
    ),
    Alert(
        "PeerPutOut",
        'sum(increase(swarmflow_decisions_total{kind="put_out"}[1h])) > 0',
        "0s",
        "warning",
        "A process was kept out for a while: it computed, summed, reported or sent what cannot be right.",
        "The leader's log names it and the reason: check its memory and its software.",
    ),
    Alert(
        "ImpossibleMessages",
        _increase_from_nothing('swarmflow_decisions_total{kind=~"messages_refused:.*"}', "10m"),
        "0s",
        "warning",
        "A process sent messages that cannot be true: a broken machine, or an attack.",
        "The logs name it.",
    ),
    Alert(
        "MessageRaised",
        _increase_from_nothing('swarmflow_decisions_total{kind=~"messages_raised:.*"}', "1h"),
        "0s",
        "warning",
        "A message raised an exception, which is a bug in swarmflow; its sender was put out.",
        "Please report the traceback in the log.",
    ),
    Alert(
        "SendsTooSlowly",
        'max by (instance) (swarmflow_queued_bytes{lane="bulk"}) > 1e8',
        "1m",
        "warning",
        "More than 100 MB wait to be sent by {{ $labels.instance }}: its link is slower than its computation.",
        "Give the machine a faster link, or more computation a byte: larger microbatches, another codec.",
    ),
    Alert(
        "MetricsUnreachable",
        'up{job="peer"} == 0',
        "2m",
        "info",
        "The metrics of peer {{ $labels.peer }} cannot be read, although it takes part.",
        "Open its --metrics-port, or give it none.",
    ),
)


def rules_file() -> str:
    """Return the rules as YAML for Prometheus. A string of JSON is one of YAML too."""
    lines = ["# Written by `make generate` from swarmflow/monitoring/prometheus_rules.py.", "groups:"]
    lines += ["  - name: swarmflow-recordings", "    rules:"]
    for recording in RECORDINGS:
        lines += [f"      - record: {recording.name}", f"        expr: {json.dumps(recording.expr)}"]
    lines += ["  - name: swarmflow-alerts", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expr)}",
            f"        for: {alert.after}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.advice)}",
        ]
    return "\n".join(lines) + "\n"
