"""The metrics of a whole swarm, as a trainer serves them at `/metrics/swarm`: one table for the code and for docs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "swarmflow_swarm_"

Kind = Literal["gauge", "counter", "info"]


@dataclass(frozen=True)
class Family:
    """A metric. key: of the view, of a peer or of its summary, whose number it is; empty: it is worked out."""

    name: str
    kind: Kind
    text: str
    key: str = ""
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """The name without the suffix of its kind."""
        return PREFIX + self.name


RUN_INFO = Family("run", "info", "Name and id of the run", labels=("name", "run"))
PHASE = Family("phase", "gauge", "1 for the phase that the run is in, else 0", labels=("phase",))
TRAINERS = Family("trainers", "gauge", "Trainers in the swarm")
RUN: Final = (
    Family("step", "gauge", "Step in progress, from 0", "step"),
    Family("steps", "gauge", "Steps that the run is to have", "steps"),
    Family("version", "gauge", "Steps committed", "version"),
    Family(
        "durable_version", "gauge", "Newest version of which the leader has all stages on its disk", "durable_version"
    ),
    Family("loss", "gauge", "Mean cross-entropy of the last step, in nats a token", "loss"),
    Family("tokens_per_second", "gauge", "Target tokens of the last step over its seconds", "tokens_per_s"),
    Family("step_seconds", "gauge", "Time from the last step's opening to its commit", "step_seconds"),
    Family("left_seconds", "gauge", "Expected time until the last step", "left_s"),
    Family(
        "waiting_seconds", "gauge", "How long a run without an open step has waited for the same thing", "waiting_s"
    ),
    Family("microbatches", "gauge", "Microbatches of a step", "microbatches"),
)

STAGE: Final = ("stage",)
PEERS = Family("peers", "gauge", "Peers of a stage", labels=("stage", "phase"))
REPORTING = Family("reporting_peers", "gauge", "Peers of a stage that have reported a summary", labels=STAGE)
REACH = Family("reach_peers", "gauge", "Peers by how others connect to them", labels=("reach",))
LOWEST_VERSION = Family("stage_lowest_version", "gauge", "Lowest version that a peer of the stage holds", labels=STAGE)
HIGHEST_VERSION = Family(
    "stage_highest_version", "gauge", "Highest version that a peer of the stage holds", labels=STAGE
)
MEDIAN_LINK = Family(
    "stage_median_link_seconds",
    "gauge",
    "Time of a boundary tensor on the (lower) median link to the stage",
    labels=STAGE,
)
SLOWEST_LINK = Family(
    "stage_slowest_link_seconds",
    "gauge",
    "Time of a boundary tensor on the slowest link to the stage",
    labels=("stage", "sender", "receiver"),
)
# Sums over the present peers of a stage. A sum of counts falls when a peer leaves, so that it is a gauge.
STAGE_SUMS: Final = (
    Family("stage_capacity_microbatches", "gauge", "Most microbatches that fit in memory", "capacity", STAGE),
    Family("stage_held_microbatches", "gauge", "Microbatches in memory", "held", STAGE),
    Family("stage_queue_length", "gauge", "Microbatches that wait for computation", "queued", STAGE),
    Family("stage_speed_gigaflops", "gauge", "Speed of matrix products, measured at the start", "speed", STAGE),
)
STAGE_SUMMARY_SUMS: Final = (
    Family("stage_microbatches", "gauge", "Hops computed by the present peers", "microbatches", STAGE),
    Family("stage_tokens", "gauge", "Target tokens of these hops", "tokens", STAGE),
    Family("stage_compute_seconds", "gauge", "Time that the present peers spent computing", "compute_s", STAGE),
    Family("stage_used_seconds", "gauge", "Of that, in committed steps", "used_s", STAGE),
    Family("stage_wasted_seconds", "gauge", "Of that, in no step ever", "wasted_s", STAGE),
    Family("stage_sent_bytes", "gauge", "Bytes written by the present peers to other processes", "sent_bytes", STAGE),
    Family("stage_received_bytes", "gauge", "Bytes read by the present peers", "received_bytes", STAGE),
    Family("stage_memory_bytes", "gauge", "Resident memory of the present peers", "memory_bytes", STAGE),
    Family("stage_loading_bytes", "gauge", "Received of the stage by peers that load it", "loading_bytes", STAGE),
    Family("stage_loading_total_bytes", "gauge", "Size of what these peers load", "loading_total_bytes", STAGE),
)

PEER: Final = ("peer", "stage")
PEER_VALUES: Final = (
    Family("peer_version", "gauge", "Version that the peer holds or loads", "version", PEER),
    Family("peer_capacity_microbatches", "gauge", "Most microbatches that fit in memory", "capacity", PEER),
    Family("peer_held_microbatches", "gauge", "Microbatches in memory", "held", PEER),
    Family("peer_queue_length", "gauge", "Microbatches that wait for computation", "queued", PEER),
)
PEER_SUMMARY_VALUES: Final = (
    Family("peer_microbatches", "counter", "Hops computed", "microbatches", PEER),
    Family("peer_tokens", "counter", "Target tokens of these hops", "tokens", PEER),
    Family("peer_compute_seconds", "counter", "Time spent computing", "compute_s", PEER),
    Family("peer_used_seconds", "counter", "Of that, in committed steps", "used_s", PEER),
    Family("peer_wasted_seconds", "counter", "Of that, in no step ever", "wasted_s", PEER),
    Family("peer_sent_bytes", "counter", "Bytes written to other processes", "sent_bytes", PEER),
    Family("peer_received_bytes", "counter", "Bytes read from other processes", "received_bytes", PEER),
    Family("peer_memory_bytes", "gauge", "Resident memory of the process", "memory_bytes", PEER),
    Family("peer_loading_bytes", "gauge", "Received of the stage that the peer loads", "loading_bytes", PEER),
    Family("peer_loading_total_bytes", "gauge", "Size of that stage; 0: it loads none", "loading_total_bytes", PEER),
)
FAMILIES: Final = (
    *(RUN_INFO, PHASE, TRAINERS, *RUN),
    *(PEERS, REPORTING, REACH, LOWEST_VERSION, HIGHEST_VERSION, MEDIAN_LINK, SLOWEST_LINK),
    *(*STAGE_SUMS, *STAGE_SUMMARY_SUMS, *PEER_VALUES, *PEER_SUMMARY_VALUES),
)
