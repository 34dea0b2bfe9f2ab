"""The links of a run as its leader knows them, for those who plan: between all peers, and what travels over them."""

from __future__ import annotations

from typing import Any

from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.leading.planning import PLACED, may_move
from swarmflow.core.routing.link_map import LinkMap


def links_of(leader: Leader) -> dict[str, Any]:
    """Return the peers that serve or load a stage, the known links between them, and the sizes of what these carry.

    links: the places of both ends in `peers`, the latency in seconds, the rate in bytes/s.
    """
    plan = leader.plan
    entries = [entry for entry in leader.membership.peers() if entry.phase in PLACED]
    links = leader.plans.links if leader.plans is not None else _reported(leader)
    return {
        "stages": plan.stages,
        "microbatches": plan.microbatches,
        "boundary_bytes": plan.boundary_bytes,
        "gradient_bytes": list(plan.reduced_bytes or (0,) * plan.stages),
        "peers": [
            {"name": entry.process.name, "stage": entry.member.stage, "fixed": not may_move(entry)} for entry in entries
        ],
        "links": links.between([entry.process for entry in entries]),
    }


def _reported(leader: Leader) -> LinkMap:
    """Return what peers report of the links that they use: the rate of whole tensors, their latency in it."""
    links = LinkMap()
    for entry in leader.membership.peers():
        if entry.rates is not None:
            links.learn(entry.process, [(to, 0.0, rate) for to, rate in entry.rates.rates])
    return links
