"""The routers by their names: `[train] router` of RUN.toml, and `[run] router` of a scenario."""

from __future__ import annotations

from swarmflow.core.iwrr import Iwrr
from swarmflow.core.shortest import Shortest
from swarmflow.core.takers import Router

ROUTERS: dict[str, type[Iwrr] | type[Shortest]] = {"shortest": Shortest, "iwrr": Iwrr}


def router_named(name: str) -> Router:
    """A new one, for the peers of one stage as one sender sees them."""
    return ROUTERS[name]()
