"""The routers by their names, `[train] router` of RUN.toml and `[run] router` of a scenario, and who sends by one."""

from __future__ import annotations

from swarmflow.core.dispatcher import Dispatcher
from swarmflow.core.flow.router import FlowRouter
from swarmflow.core.iwrr import Iwrr
from swarmflow.core.next_stage import Router
from swarmflow.core.prober import Prober
from swarmflow.core.shortest import Shortest
from swarmflow.core.types import Plan, ProcessId

ROUTERS = ("shortest", "iwrr", "flow")


def router_named(name: str, sender: ProcessId) -> Router:
    """A new one, for the peers of one stage as one sender sees them."""
    if name == "iwrr":
        return Iwrr()
    shortest = Shortest(sender.name)
    return FlowRouter(shortest) if name == "flow" else shortest


def dispatcher_for(plan: Plan, sender: ProcessId, stage: int) -> Dispatcher:
    """Return the dispatcher of a process to this stage. Token ids, which go to stage 0, are too few to be probed."""
    prober = Prober(plan.boundary_bytes if stage > 0 else 0)
    return Dispatcher(stage, router_named(plan.router, sender), plan.timeouts.late_s, prober)
