"""The routers by their names, `[train] router` of RUN.toml and `[run] router` of a scenario."""

from __future__ import annotations

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.router import FlowRouter
from swarmflow.core.routing.iwrr import Iwrr
from swarmflow.core.routing.router import Router
from swarmflow.core.routing.shortest import Shortest

FLOW_ROUTERS = ("flow", "gwtf", "gwtf-sum")  # along flows that swarmflow, or GWTF, negotiates
ROUTERS = ("shortest", "iwrr", *FLOW_ROUTERS)


def router_named(name: str, sender: ProcessId) -> Router:
    """Return a new router of this name, for the peers of one stage as one sender measures them."""
    if name == "iwrr":
        return Iwrr()
    shortest = Shortest(sender.name)
    return FlowRouter(shortest) if name in FLOW_ROUTERS else shortest
