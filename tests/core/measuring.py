"""What a sender has measured, given to its router."""

from __future__ import annotations

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.router import Router

APART_S = 100.0  # between two transfers of one test, so that none waits for the other


def transferred(router: Router, process: ProcessId, seconds: float, now: float | None = None) -> None:
    """A tensor has arrived so long after it was sent."""
    at_s = router.links.now_s + APART_S if now is None else now
    router.links.record_transfer(process, 1000, seconds, at_s, direct=True)
    router.refresh(process)


def probed(router: Router, process: ProcessId, seconds: float) -> None:
    """A probe says that a tensor would take so long."""
    router.links.record_probe(process, 1000, seconds, router.links.now_s)
    router.refresh(process)


def on_path(router: Router, process: ProcessId, seconds: float) -> None:
    """By another path a tensor would take so long."""
    router.links.record_path(process, seconds)
    router.refresh(process)


def responded(router: Router, process: ProcessId, seconds: float, service_s: float | None = None) -> None:
    """A peer has passed a microbatch on so long after it was sent. service_s: that a pass takes there, as it says."""
    router.links.record_response(process, seconds, router.links.now_s)
    if service_s is not None:
        router.links.record_service(process, service_s, router.links.now_s)
    router.refresh(process)
