"""Causes: what each moment of virtual time waited for, along the chain of causes that led to it (its critical path)."""

from __future__ import annotations

from typing import NamedTuple

# What an event that was planned earlier waits for until it happens.
TIMER, COMPUTE, LINKS, REDUCE, CHANCE = range(5)


class Cause(NamedTuple):
    """The critical path of an event: seconds of each kind from its root on; what is none of these were timers.

    An event follows from the one in whose callback it was planned, and the time in between is of one kind. Its root is
    the last mark (the beginning of a step), or what nothing in the swarm has caused: a peer that leaves or comes.
    """

    root_s: float = 0.0
    now_s: float = 0.0
    compute_s: float = 0.0
    links_s: float = 0.0
    reduce_s: float = 0.0

    def then(self, now_s: float, why: int) -> Cause:
        """The path of an event that follows from this one. why: what it waited for."""
        root_s, since_s, compute_s, links_s, reduce_s = self
        if why == LINKS:
            links_s += now_s - since_s
        elif why == COMPUTE:
            compute_s += now_s - since_s
        elif why == REDUCE:
            reduce_s += now_s - since_s
        elif why == CHANCE:
            return Cause(now_s, now_s)
        return Cause(root_s, now_s, compute_s, links_s, reduce_s)

    def shares(self, busiest_s: float, seconds: float) -> Shares:
        """The parts of a step of so many seconds that ends with this event.

        busiest_s: seconds that the busiest peer computed in the step: no step can be shorter. What lies before a root
        within the step is not explained by the path, and counts like the rest of it.
        """
        length_s = self.now_s - self.root_s
        scale = seconds / length_s if length_s > 0 else 0.0
        compute_s, links_s, reduce_s = (part * scale for part in (self.compute_s, self.links_s, self.reduce_s))
        needed_s = min(compute_s, busiest_s)
        downstream_s = max(0.0, seconds - compute_s - links_s - reduce_s)
        return Shares(needed_s, links_s, reduce_s, compute_s - needed_s, downstream_s)


class Shares(NamedTuple):
    """Where the seconds of a step went; together they are all of them.

    compute_s: computing, at most as long as the busiest peer computed. links_s: microbatches and their messages between
    two processes. reduce_s: all-reduce and the messages around it, between the last backward pass and the first forward
    pass. fill_s: the rest of the computing: stages one after the other, before the pipeline is full and while it
    empties. timer_s: anything else: deadlines, as of processes that are silent or late, and states that are loaded.
    """

    compute_s: float = 0.0
    links_s: float = 0.0
    reduce_s: float = 0.0
    fill_s: float = 0.0
    timer_s: float = 0.0


BEGINNING = Cause()
NAMES = {
    "compute_s": "compute",
    "links_s": "links",
    "reduce_s": "all-reduce",
    "fill_s": "pipeline fill",
    "timer_s": "timers",
}
