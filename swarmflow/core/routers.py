"""The routers by their names: `[train] router` of RUN.toml, and `[run] router` of a scenario."""

from __future__ import annotations

from swarmflow.core.flow.router import FlowRouter
from swarmflow.core.iwrr import Iwrr
from swarmflow.core.shortest import Shortest
from swarmflow.core.takers import Router
from swarmflow.core.types import ProcessId

ROUTERS = ("shortest", "iwrr", "flow")


def router_named(name: str, sender: ProcessId) -> Router:
    """A new one, for the peers of one stage as one sender sees them."""
    if name == "iwrr":
        return Iwrr()
    shortest = Shortest(sender.name)
    return FlowRouter(shortest) if name == "flow" else shortest
