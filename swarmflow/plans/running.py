"""The machines of a running swarm: its peers, and the links between them as its leader knows them."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec

from swarmflow.core.protocol.actions import PlanStages
from swarmflow.core.protocol.types import MeasuredLink
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import ConfigError, NetworkError
from swarmflow.planning.stage_choice import StageChoice, plan_stages
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
    peers: tuple[RunningPeer, ...]
    links: list[tuple[int, int, float, float]]


def of_run(answer: bytes, microbatches: float | None, seed: int = 0) -> Fleet:
    """Return the peers of a run, from the answer of its leader.

    microbatches: that a link carries one after the other; None: an even share of a step. Raises NetworkError for an
    answer that is none, ConfigError where nothing is known of its links, or too few peers may serve a stage.
    """
    swarm = _read(answer)
    if not swarm.links:
        raise ConfigError(
            'the run knows the rate of no link: its peers measure all of them with [train] placement = "planned", '
            "which may be set when its trainer starts again"
        )
    asked = PlanStages(
        0,
        [MeasuredLink(*link) for link in swarm.links],
        tuple(peer.stage for peer in swarm.peers),
        tuple(peer.fixed for peer in swarm.peers),
        swarm.microbatches,
        swarm.boundary_bytes,
        swarm.gradient_bytes,
    )
    found = StageChoice(asked)
    if not found.pipelines:
        raise ConfigError(f"the {len(swarm.peers)} peers of the run cannot serve its {swarm.stages} stages: start more")
    problem = found.problem
    if microbatches is not None:
        problem = replace(problem, activation_bytes=microbatches * swarm.boundary_bytes)
    names = tuple(peer.name for peer in swarm.peers)
    spare = tuple(name for number, name in enumerate(names) if number not in found.planned)
    return Fleet(tuple(names[number] for number in found.planned), problem, seed, spare, _notes(swarm, asked))


def _read(answer: bytes) -> RunningSwarm:
    try:
        swarm = msgspec.json.decode(answer, type=RunningSwarm)
    except UNDECODABLE as error:
        raise NetworkError(f"the answer of the run cannot be read: {error}") from error
    count = len(swarm.peers)
    stages = all(0 <= peer.stage < swarm.stages for peer in swarm.peers) and len(swarm.gradient_bytes) == swarm.stages
    links = all(
        0 <= one < count and 0 <= other < count and one != other and 0 <= latency_s < math.inf and 0 < rate < math.inf
        for one, other, latency_s, rate in swarm.links
    )
    if not (swarm.stages > 0 and count <= PEERS_MAX and stages and links):
        raise NetworkError("the answer of the run cannot be read: its peers, stages and links do not fit")
    return swarm


def _notes(swarm: RunningSwarm, asked: PlanStages) -> tuple[str, ...]:
    """Return what its leader knows, and what it would do about it."""
    count, plan = len(swarm.peers), plan_stages(asked)
    moves = sum(stage != peer.stage for stage, peer in zip(plan.stages, swarm.peers, strict=True))
    present = f"{plan.staying_s:.4g} s" if math.isfinite(plan.staying_s) else "impossible: a stage has no peer"
    known = len({(one, other) for one, other, *_ in swarm.links})
    return (
        f"{known} of {count * (count - 1)} directions of links are measured; others count as the median one",
        f"at present {present}; {plan.planned_s:.4g} s if {moves} peers move",
    )
