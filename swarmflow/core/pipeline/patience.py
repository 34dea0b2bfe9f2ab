"""When a microbatch waits for another peer, although a free one would take it: the free one may be far slower."""

from __future__ import annotations

import math

from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.protocol.types import ProcessId

# Times what one microbatch takes at a peer: what it told longer ago is not true any more where others give it work
# too. A step of 64 like peers takes 247 s where all counts that was ever told, 228 s with this; one of
# 400 takes 231 s and 236 s with one seed.
LATELY = 2.0
# Microbatches that a peer gets from others before this one. Like peers differ by less than these take, and waiting for
# one of them leaves the other idle: without it a step of 400 takes 241.6 s, with it 236.0 s. Even a sender that is
# alone, and knows of all work there, would wait for the very best of many peers: 249.7 s instead of 231.5 where it
# assumes none of others.
AHEAD = 2.0
PATIENCE_S = 60.0  # the longest that a microbatch waits for another peer, although a free one would take it


def too_late_s(dispatcher: Dispatcher, process: ProcessId) -> float:
    """Return by how much later than the others a peer would be done with a microbatch, in seconds; 0 or less: not.

    It has just told what it has to do, with the microbatch. The others are those that cannot be asked now: the full
    ones, and those whose answer is on its way. Whoever is near answers first, and would else be given all that waits
    meanwhile. What they had to do when they last told is not all: what waits here, and as much at each of the other
    senders, goes to the stage before it. So at the beginning of a step a slow peer gets its share, and at the end none
    that all others would have to wait for.
    """
    links, available = dispatcher.router.links, dispatcher.next_stage.availability
    if not dispatcher.router.waits or not links.peer_work(process).each_s:
        return -math.inf
    alone = dispatcher.senders == 1
    others = [(peer, links.peer_work(peer)) for peer in available.full() | available.asked_out() if peer != process]
    soon_s = [
        _there_s(dispatcher, peer) + (AHEAD + 1.0) * work.each_s
        for peer, work in others
        if work.each_s and (alone or links.now_s - work.at_s < LATELY * work.each_s)
    ]
    late_s = _there_s(dispatcher, process) - min(soon_s, default=math.inf)
    if late_s <= 0.0:  # of most questions in a large stage, whose peers are not looked at for that
        return late_s
    speeds = [1.0 / each_s for peer in available.alive if (each_s := links.peer_work(peer).each_s) > 0.0]
    a_second = sum(speeds) * len(available.alive) / len(speeds)  # the others are as fast as those
    return late_s - (len(dispatcher.waiting) + 1) * dispatcher.senders / a_second


def _there_s(dispatcher: Dispatcher, process: ProcessId) -> float:
    """Return what is left of what a peer has to do, with the way to it and back."""
    links = dispatcher.router.links
    return 2.0 * (links.transfer_s(process) or 0.0) + links.work_s(process)
