"""The negotiations of flows by the routers that follow them."""

from __future__ import annotations

from random import Random

from swarmflow.core.protocol.types import Plan, ProcessId
from swarmflow.core.routing.compute_timer import ComputeTimer
from swarmflow.core.routing.flow.gwtf_live import LiveGwtf
from swarmflow.core.routing.flow.live import FlowNegotiation
from swarmflow.core.routing.flow.router import FlowRouter
from swarmflow.core.routing.router import Router

Negotiation = FlowNegotiation | LiveGwtf


def negotiation_of(
    me: ProcessId, stage: int, plan: Plan, router: Router, timer: ComputeTimer, without_graph: int = 0
) -> Negotiation | None:
    """Return the negotiation of a process; None: its router follows no flows.

    stage: TRAINER for a trainer. without_graph: microbatches that the process takes without a graph, as a multiple of
    its capacity.
    """
    if not isinstance(router, FlowRouter):
        return None
    random = Random(f"{me.name} {me.incarnation} {stage}")
    of = me, stage, plan.stages, plan.microbatches, router, random, timer, 1 + without_graph
    if plan.router == "flow":
        return FlowNegotiation(*of)
    return LiveGwtf(*of, "sum" if plan.router == "gwtf-sum" else "minmax")
