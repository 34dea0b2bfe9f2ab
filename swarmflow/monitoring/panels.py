"""What the four Grafana dashboards show: one table for their files and for docs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PEER: Final = 'peer=~"$peer"'
STAGE: Final = 'stage=~"$stage"'


@dataclass(frozen=True)
class Panel:
    """A panel. queries: by legend, a template of Grafana. unit: of Grafana."""

    title: str
    unit: str
    text: str
    queries: dict[str, str]


@dataclass(frozen=True)
class Dashboard:
    """A dashboard. variable: by which a user selects; its values are those of that label of `of`."""

    name: str
    text: str
    panels: tuple[Panel, ...]
    variable: str = ""
    of: str = ""


def _quantiles(name: str, where: str = "", by: str = "") -> dict[str, str]:
    """Return the queries of median and 95% of a histogram. by: a label that tells series apart."""
    labels, legend = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    rate = f"sum by ({labels}) (rate(swarmflow_{name}_bucket{where}[5m]))"
    return {f"{legend}{100 * q:g}%": f"histogram_quantile({q}, {rate})" for q in (0.5, 0.95)}


def _rate_of_peers(name: str, where: str = "") -> str:
    """Return the query of a counter's rate by peer, of those of `/metrics/swarm`.

    Every trainer tells the same of a peer, and so counts once. `other` is a sum over peers that falls when one leaves.
    """
    matchers = ", ".join(filter(None, ('peer!="other"', where)))
    rate = f"rate(swarmflow_swarm_peer_{name}_total{{{matchers}}}[1m])"
    return f"max by (peer) (sum by (instance, peer) ({rate}))"


SWARM: Final = Dashboard(
    "swarm",
    "How the run goes: steps, loss, throughput, and what is repaired.",
    (
        Panel(
            "Throughput",
            "short",
            "Target tokens of committed steps a second",
            {
                "committed": "max(rate(swarmflow_tokens_total[1m]))",
                "last step": "max(swarmflow_swarm_tokens_per_second)",
            },
        ),
        Panel(
            "Loss",
            "short",
            "Mean cross-entropy, in nats a token",
            {"training": "max(swarmflow_loss)", "validation": "max(swarmflow_validation_loss)"},
        ),
        Panel(
            "Peers a stage",
            "short",
            "Peers that are ready, serve or drain",
            {"stage {{stage}}": "swarmflow:live_peers"},
        ),
        Panel(
            "Version",
            "short",
            "Steps committed, those on disk, and those that the slowest peer holds",
            {
                "committed": "max(swarmflow_swarm_version)",
                "on disk": "max(swarmflow_swarm_durable_version)",
                "lowest of a peer": "min(swarmflow_swarm_stage_lowest_version)",
            },
        ),
        Panel(
            "Time left",
            "s",
            "Until the last step, at the rate of the last 20; and how long the run waits for the same thing",
            {"left": "max(swarmflow_swarm_left_seconds)", "waiting": "max(swarmflow_swarm_waiting_seconds)"},
        ),
        Panel("Step time", "s", "From a step's opening to its commit", _quantiles("step_seconds")),
        Panel(
            "Gradient norm and learning rate",
            "short",
            "Before clipping",
            {"norm": "max(swarmflow_grad_norm)", "learning rate": "max(swarmflow_learning_rate)"},
        ),
        Panel(
            "Repairs",
            "short",
            "What was done again, or spared, for dead peers, a second",
            {"{{kind}}": "swarmflow:repairs:rate5m", "deaths": "sum(rate(swarmflow_suspected_total[5m]))"},
        ),
        Panel(
            "Wasted compute",
            "percentunit",
            "Share of the computed seconds that are in no step",
            {
                "scraped peers": "swarmflow:compute:wasted_ratio",
                "all peers": "sum(swarmflow_swarm_stage_wasted_seconds) / sum(swarmflow_swarm_stage_compute_seconds)",
            },
        ),
        Panel(
            "Reach of peers",
            "short",
            "How others connect to the peers",
            {"{{reach}}": "max by (reach) (swarmflow_swarm_reach_peers)"},
        ),
        Panel(
            "Rare decisions",
            "short",
            "In the last minute",
            {"{{kind}}": "sum by (kind) (increase(swarmflow_decisions_total[1m]))"},
        ),
        Panel(
            "Alerts",
            "short",
            "Alerts that fire or are about to",
            {"{{alertname}}": "count by (alertname) (ALERTS) or vector(0)"},
        ),
    ),
)

STAGES: Final = Dashboard(
    "stage",
    "What the peers of a stage do together, those behind a NAT included.",
    (
        Panel(
            "Peers by phase",
            "short",
            "Peers of the stage",
            {"stage {{stage}} {{phase}}": f"max by (stage, phase) (swarmflow_swarm_peers{{{STAGE}}})"},
        ),
        Panel(
            "Microbatches",
            "short",
            "In memory, waiting for computation, and the most that fit",
            {
                "stage {{stage}} held": f"max by (stage) (swarmflow_swarm_stage_held_microbatches{{{STAGE}}})",
                "stage {{stage}} queued": f"max by (stage) (swarmflow_swarm_stage_queue_length{{{STAGE}}})",
                "stage {{stage}} capacity": f"max by (stage) (swarmflow_swarm_stage_capacity_microbatches{{{STAGE}}})",
            },
        ),
        Panel(
            "Hops",
            "ops",
            "Computed a second by the peers that Prometheus reaches",
            {
                "stage {{stage}} {{direction}}": "sum by (stage, direction) "
                f"(rate(swarmflow_microbatches_total{{{STAGE}}}[1m]))"
            },
        ),
        Panel(
            "Computed by present peers",
            "s",
            "Since each of them started",
            {
                "stage {{stage}} computed": f"max by (stage) (swarmflow_swarm_stage_compute_seconds{{{STAGE}}})",
                "stage {{stage}} used": f"max by (stage) (swarmflow_swarm_stage_used_seconds{{{STAGE}}})",
                "stage {{stage}} wasted": f"max by (stage) (swarmflow_swarm_stage_wasted_seconds{{{STAGE}}})",
            },
        ),
        Panel(
            "Speed",
            "short",
            "Sum of the peers' matrix products, in GFLOP/s",
            {"stage {{stage}}": f"max by (stage) (swarmflow_swarm_stage_speed_gigaflops{{{STAGE}}})"},
        ),
        Panel(
            "Memory",
            "bytes",
            "Resident, of all peers of the stage",
            {"stage {{stage}}": f"max by (stage) (swarmflow_swarm_stage_memory_bytes{{{STAGE}}})"},
        ),
        Panel(
            "Versions",
            "short",
            "Lowest and highest that a peer of the stage holds",
            {
                "stage {{stage}} lowest": f"min by (stage) (swarmflow_swarm_stage_lowest_version{{{STAGE}}})",
                "stage {{stage}} highest": f"max by (stage) (swarmflow_swarm_stage_highest_version{{{STAGE}}})",
            },
        ),
        Panel(
            "Loading",
            "bytes",
            "Received of what peers load, and its size",
            {
                "stage {{stage}} received": f"max by (stage) (swarmflow_swarm_stage_loading_bytes{{{STAGE}}})",
                "stage {{stage}} size": f"max by (stage) (swarmflow_swarm_stage_loading_total_bytes{{{STAGE}}})",
            },
        ),
    ),
    "stage",
    "swarmflow_swarm_reporting_peers",
)

PEERS: Final = Dashboard(
    "peer",
    "What single peers do. Those that Prometheus cannot reach have the panels of what they report to the leader alone.",
    (
        Panel(
            "Computed",
            "percentunit",
            "Share of the time that the peer computes, as it reports it",
            {"{{peer}}": _rate_of_peers("compute_seconds", PEER)},
        ),
        Panel(
            "Wasted",
            "percentunit",
            "Share of what the peer computes that is in no step",
            {"{{peer}}": f"swarmflow:peer:wasted_ratio{{{PEER}}}"},
        ),
        Panel(
            "Microbatches",
            "ops",
            "Hops a second, as the peer reports them",
            {"{{peer}}": _rate_of_peers("microbatches", PEER)},
        ),
        Panel(
            "Memory",
            "bytes",
            "Resident memory, and bytes kept for repairs",
            {
                "{{peer}}": f"max by (peer) (swarmflow_swarm_peer_memory_bytes{{{PEER}}})",
                "{{peer}} journal": f"max by (peer) (swarmflow_journal_bytes{{{PEER}}})",
            },
        ),
        Panel("Time of a hop", "s", "By direction", _quantiles("pass_seconds", f"{{{PEER}}}", "direction")),
        Panel(
            "All-reduce",
            "s",
            "From its beginning to the norm; a stage of one peer has none",
            _quantiles("reduce_seconds", f"{{{PEER}}}"),
        ),
        Panel(
            "Update",
            "s",
            "Computation at a step's end: sums, norm, update",
            _quantiles("update_seconds", f"{{{PEER}}}"),
        ),
        Panel(
            "Queue",
            "short",
            "Microbatches that wait, are held, and fit",
            {
                "{{peer}} queued": f"max by (peer) (swarmflow_queue_length{{{PEER}}})",
                "{{peer}} held": f"max by (peer) (swarmflow_held_microbatches{{{PEER}}})",
                "{{peer}} capacity": f"max by (peer) (swarmflow_capacity_microbatches{{{PEER}}})",
            },
        ),
        Panel(
            "Loading",
            "percentunit",
            "Share of the stage that has been received, while the peer loads it; else 1",
            {
                "{{peer}}": f"max by (peer) ((swarmflow_swarm_peer_loading_bytes{{{PEER}}} + 1) "
                f"/ (swarmflow_swarm_peer_loading_total_bytes{{{PEER}}} + 1))"
            },
        ),
        Panel(
            "Moves and refusals",
            "short",
            "In the last 5 minutes: other stages that the peer was given, and microbatches that it refused",
            {
                "{{peer}} moves": f"sum by (peer) (increase(swarmflow_moves_total{{{PEER}}}[5m]))",
                "{{peer}} denials": f"sum by (peer) (increase(swarmflow_denials_total{{{PEER}}}[5m]))",
            },
        ),
    ),
    "peer",
    "swarmflow_swarm_peer_version",
)

NETWORK: Final = Dashboard(
    "network",
    "What goes over the network, and what goes wrong there.",
    (
        Panel(
            "Bytes sent",
            "Bps",
            "By kind of message",
            {"{{kind}}": "sum by (kind) (rate(swarmflow_sent_bytes_total[1m]))"},
        ),
        Panel(
            "Bytes received",
            "Bps",
            "By kind of message",
            {"{{kind}}": "sum by (kind) (rate(swarmflow_received_bytes_total[1m]))"},
        ),
        Panel(
            "Traffic of peers",
            "Bps",
            "As they report it to the leader",
            {"{{peer}} sent": _rate_of_peers("sent_bytes"), "{{peer}} received": _rate_of_peers("received_bytes")},
        ),
        Panel(
            "Compression",
            "short",
            "Bytes of boundary tensors before the codec over those behind it",
            {"{{tensor}}": "swarmflow:compression:ratio"},
        ),
        Panel(
            "Links",
            "s",
            "Time of a boundary tensor on the links to a stage",
            {
                "stage {{stage}} median": "max by (stage) (swarmflow_swarm_stage_median_link_seconds)",
                "stage {{stage}} {{sender}} to {{receiver}}": "max by (stage, sender, receiver) "
                "(swarmflow_swarm_stage_slowest_link_seconds)",
            },
        ),
        Panel("Bytes that wait to be sent", "bytes", "By lane", {"{{lane}}": "sum by (lane) (swarmflow_queued_bytes)"}),
        Panel(
            "Retries and denials",
            "short",
            "In the last minute, by reason",
            {
                "sent again: {{reason}}": "sum by (reason) (increase(swarmflow_retries_total[1m]))",
                "refused: {{reason}}": "sum by (reason) (increase(swarmflow_denials_total[1m]))",
            },
        ),
        Panel(
            "Bad frames",
            "short",
            "In the last minute, by reason",
            {"{{reason}}": "sum by (reason) (increase(swarmflow_frames_refused_total[1m]))"},
        ),
        Panel(
            "Cost of flows",
            "s",
            "With the router `flow`: link costs of the windows that were optimised, before, and the least possible",
            {"{{when}}": "sum by (when) (rate(swarmflow_flow_cost_seconds_total[5m]))"},
        ),
        Panel(
            "Choices of the next peer",
            "ops",
            "With a router that follows flows, along a flow or not",
            {"{{by}}": "sum by (by) (rate(swarmflow_routed_total[1m]))"},
        ),
    ),
)

DASHBOARDS: Final = (SWARM, STAGES, PEERS, NETWORK)
