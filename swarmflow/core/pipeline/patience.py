"""When a microbatch waits for a full peer, although a free one would take it: the free one may be far slower."""

from __future__ import annotations

import math

from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.protocol.types import ProcessId

PATIENCE_S = 60.0  # the longest that a microbatch waits for a full peer, although a free one would take it


def too_late_s(dispatcher: Dispatcher, process: ProcessId) -> float:
    """Return by how much later than the full peers a peer would be done with a microbatch, in seconds; 0 or less: not.

    It has just told what it has to do, with the microbatch. What the full ones had to do when they last told is not
    all: what waits here, and as much at each of the other senders, goes to the stage before it. So at the beginning of
    a step a slow peer gets its share, and at the end none that all others would have to wait for.
    """
    links, available = dispatcher.router.links, dispatcher.next_stage.availability
    if not dispatcher.router.waits or not links.each_s(process):
        return -math.inf
    full = [peer for peer in available.full() if peer != process and links.each_s(peer) > 0.0]
    soonest_s = min((_there_s(dispatcher, peer) + links.each_s(peer) for peer in full), default=math.inf)
    late_s = _there_s(dispatcher, process) - soonest_s
    if late_s <= 0.0:  # of most questions in a large stage, whose peers are not looked at for that
        return late_s
    speeds = [1.0 / each_s for peer in available.alive if (each_s := links.each_s(peer)) > 0.0]
    a_second = sum(speeds) * len(available.alive) / len(speeds)  # the others are as fast as those
    return late_s - (len(dispatcher.waiting) + 1) * dispatcher.senders / a_second


def _there_s(dispatcher: Dispatcher, process: ProcessId) -> float:
    """Return what is left of what a peer has to do, with the way to it and back."""
    links = dispatcher.router.links
    return 2.0 * (links.transfer_s(process) or 0.0) + links.work_s(process)
