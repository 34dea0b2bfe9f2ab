"""The machines of a running swarm: its peers, and the links between them as its leader knows them."""

from __future__ import annotations

import math

import msgspec

from swarmflow.core.protocol.actions import PlanStages
from swarmflow.errors import ConfigError, NetworkError
from swarmflow.planning.arrangement import Problem
from swarmflow.planning.assignment import plan_stages
from swarmflow.plans.fleet import Fleet

PEERS_MAX = 10_000


class RunningPeer(msgspec.Struct, frozen=True):
    """A peer, the stage that it serves, and whether it has to stay there."""

    name: str
    stage: int
    fixed: bool


class RunningSwarm(msgspec.Struct, frozen=True):
    """The answer of a leader to those who plan (view/links.py)."""

    stages: int
    microbatches: int
    boundary_bytes: int
    gradient_bytes: tuple[int, ...]
    placement: str
    peers: tuple[RunningPeer, ...]
    measured: int
    latency_s: list[list[float]]
    bytes_per_s: list[list[float]]


def of_run(answer: bytes, microbatches: float | None, seed: int = 0) -> Fleet:
    """Return the peers of a run, from the answer of its leader.

    microbatches: that a link carries one after the other; None: an even share of a step. Raises NetworkError for an
    answer that is none, ConfigError where nothing is known of its links, or it has fewer peers than stages.
    """
    swarm = _read(answer)
    count = len(swarm.peers)
    if count < swarm.stages:
        raise ConfigError(f"the run has {swarm.stages} stages and {count} peers: each stage needs one")
    if not swarm.measured:
        raise ConfigError(
            'the run knows the rate of no link: its peers measure all of them with [train] placement = "planned", '
            "which may be set when its trainer starts again"
        )
    pipelines = count // swarm.stages
    share = swarm.microbatches / pipelines if microbatches is None else microbatches
    problem = Problem(
        latency_s=swarm.latency_s,
        bytes_per_s=swarm.bytes_per_s,
        pipelines=pipelines,
        stages=swarm.stages,
        activation_bytes=share * swarm.boundary_bytes,
        gradient_bytes=swarm.gradient_bytes,
        pinned={number: peer.stage for number, peer in enumerate(swarm.peers) if peer.fixed},
    )
    return Fleet(tuple(peer.name for peer in swarm.peers), problem, seed, notes=_notes(swarm))


def _read(answer: bytes) -> RunningSwarm:
    try:
        swarm = msgspec.json.decode(answer, type=RunningSwarm)
    except msgspec.DecodeError as error:
        raise NetworkError(f"the answer of the run cannot be read: {error}") from error
    count = len(swarm.peers)
    tables = (swarm.latency_s, swarm.bytes_per_s)
    square = all(len(table) == count and all(len(row) == count for row in table) for table in tables)
    finite = square and all(math.isfinite(value) and value >= 0 for table in tables for row in table for value in row)
    stages = all(0 <= peer.stage < swarm.stages for peer in swarm.peers) and len(swarm.gradient_bytes) == swarm.stages
    if not (swarm.stages > 0 and count <= PEERS_MAX and finite and stages):
        raise NetworkError("the answer of the run cannot be read: its peers, stages and links do not fit")
    return swarm


def _notes(swarm: RunningSwarm) -> tuple[str, ...]:
    """Return what its leader knows, and what it would do about it."""
    count = len(swarm.peers)
    asked = PlanStages(
        0,
        swarm.latency_s,
        swarm.bytes_per_s,
        tuple(peer.stage for peer in swarm.peers),
        tuple(peer.fixed for peer in swarm.peers),
        swarm.microbatches,
        swarm.boundary_bytes,
        swarm.gradient_bytes,
    )
    plan = plan_stages(asked)
    moves = sum(stage != peer.stage for stage, peer in zip(plan.stages, swarm.peers, strict=True))
    present = f"{plan.current_s:.4g} s" if math.isfinite(plan.current_s) else "impossible: a stage has no peer"
    return (
        f"{swarm.measured} of {count * (count - 1)} directions of links are measured; others count as the median one",
        f"at present {present}; {plan.planned_s:.4g} s if {moves} peers move",
    )
