"""Critical paths: what each moment of virtual time waited for, along the chain of events that led to it."""

from __future__ import annotations

from typing import NamedTuple

# What a planned event waits for until it happens.
TIMER, COMPUTE, LINKS, REDUCE, CHANCE = range(5)


class Cause(NamedTuple):
    """The critical path of an event: the seconds of each kind since its root; the rest are timers.

    An event follows from the one in whose callback it was planned, and the time in between is of one kind. The root of
    a path is the last mark (the beginning of a step), or an event without a cause in the swarm: a peer leaves or joins.
    """

    root_s: float = 0.0
    now_s: float = 0.0  # the time of the event
    compute_s: float = 0.0
    links_s: float = 0.0
    reduce_s: float = 0.0

    def then(self, now_s: float, why: int) -> Cause:
        """Return the path of an event that follows from this one. why: what it waited for."""
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
        """Return the parts of a step of so many seconds that ends with this event.

        busiest_s: seconds that the busiest peer computed in the step, which is the least that a step can take. The time
        before a root within the step is not on the path; it is divided as the path is.
        """
        length_s = self.now_s - self.root_s
        scale = seconds / length_s if length_s > 0 else 0.0
        compute_s, links_s, reduce_s = (part * scale for part in (self.compute_s, self.links_s, self.reduce_s))
        needed_s = min(compute_s, busiest_s)
        downstream_s = max(0.0, seconds - compute_s - links_s - reduce_s)
        return Shares(needed_s, links_s, reduce_s, compute_s - needed_s, downstream_s)


class Shares(NamedTuple):
    """Where the seconds of a step went; the parts add up to the step."""

    compute_s: float = 0.0  # computing, at most as long as the busiest peer computed
    links_s: float = 0.0  # microbatches and their messages between two processes
    reduce_s: float = 0.0  # all-reduce and its messages, from the last backward pass to the first forward pass
    fill_s: float = 0.0  # the rest of the computing: stages in sequence, while the pipeline fills and empties
    timer_s: float = 0.0  # the rest: deadlines, as of silent or late processes, and the loading of states


BEGINNING = Cause()
NAMES = {
    "compute_s": "compute",
    "links_s": "links",
    "reduce_s": "all-reduce",
    "fill_s": "pipeline fill",
    "timer_s": "timers",
}
