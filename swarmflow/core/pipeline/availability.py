"""Which peers of the next stage one sender may send to, or ask for a slot, at the moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from swarmflow.core.pipeline.in_flight import DOUBLINGS_MAX
from swarmflow.core.protocol.types import ProcessId

LOST_S = 0.5  # half of the first pause after a broken connection
ASKED = 4  # times log2 of the stage's peers: so many are asked in vain before a microbatch waits


@dataclass(slots=True)
class Availability:
    """The peers that are alive, and of these who is paused, who is draining, and how many questions each gets.

    A peer is asked for one slot at a time until it says with a slot how many more it has free: if all that waits were
    asked for at once, most questions of a step would be denied. One that has none left sends a credit, as after a
    denial.
    """

    pause_s: float = 15.0  # how long a full peer is left alone unless it sends a credit
    _alive: dict[ProcessId, None] = field(default_factory=dict, init=False)
    _paused_until_s: dict[ProcessId, float] = field(default_factory=dict, init=False)
    _full_until_s: dict[ProcessId, float] = field(default_factory=dict, init=False)  # paused for questions alone
    _postponed_until_s: dict[ProcessId, float] = field(default_factory=dict, init=False)  # the same, by this sender
    _draining: dict[ProcessId, None] = field(default_factory=dict, init=False)
    _losses: Counter[ProcessId] = field(default_factory=Counter, init=False)
    _asking: Counter[ProcessId] = field(default_factory=Counter, init=False)  # questions that are not answered yet
    _free: dict[ProcessId, int] = field(default_factory=dict, init=False)  # slots, as the peer has said; else 1
    _freed: bool = field(default=False, init=False)  # another question may be asked since the last look

    def open(self, peers: tuple[ProcessId, ...]) -> None:
        """Begin an epoch with these peers."""
        self._alive = dict.fromkeys(peers)
        self._paused_until_s.clear()
        self._draining.clear()
        self.clear()

    def clear(self) -> None:
        """Forget what was asked."""
        self._asking.clear()
        self._free.clear()
        self._full_until_s.clear()
        self._postponed_until_s.clear()

    @property
    def alive(self) -> tuple[ProcessId, ...]:
        """The peers of the stage."""
        return tuple(self._alive)

    @property
    def several(self) -> bool:
        """Whether the stage has more than one peer."""
        return len(self._alive) > 1

    def __contains__(self, process: object) -> bool:
        return process in self._alive

    def enter(self, process: ProcessId) -> bool:
        """Add a peer; return whether it is new."""
        new = process not in self._alive
        self._alive[process] = None
        return new

    def gone(self, process: ProcessId) -> bool:
        """Remove a dead process; return whether it served the stage."""
        if process not in self._alive:
            return False
        del self._alive[process]
        self._draining.pop(process, None)
        self._losses.pop(process, None)
        self._postponed_until_s.clear()  # those that would be done sooner may be fewer now
        self.credit(process)
        return True

    def denied(self, process: ProcessId, reason: str, now: float) -> None:
        """Pause a peer after a denial; a draining one is used only if there is no other."""
        if reason == "draining":
            self._draining[process] = None
            self._postponed_until_s.clear()
        else:
            self._paused_until_s[process] = now + self.pause_s

    def record_free(self, process: ProcessId, free: int, now: float) -> None:
        """Record how many slots a peer has left after it has given one; without any it is not asked for a while."""
        self._free[process] = free
        self._full_until_s.pop(process, None)
        if not free:
            self._full_until_s[process] = now + self.pause_s

    def postpone(self, process: ProcessId, seconds: float, now: float) -> float:
        """Ask a peer for no slot for a while: others will be done sooner. Return until when.

        Its credits do not end that: the first one follows at once, for the very slot that is not taken. On fast links
        question, credit and question went to and fro, 200,000 of each in the first second of case 1 of
        experiments/dtfm_cases.
        """
        self._postponed_until_s[process] = until_s = now + min(seconds, self.pause_s)
        return until_s

    def is_postponed(self, process: ProcessId) -> bool:
        """Return whether a peer is asked for nothing yet, since others will be done sooner."""
        return process in self._postponed_until_s

    def full(self) -> set[ProcessId]:
        """Return the peers that have no slot, as far as is known."""
        return {*self._paused_until_s, *self._full_until_s, *self._postponed_until_s}

    def on_connection_lost(self, process: ProcessId, now: float) -> None:
        """Pause a peer whose connection broke, for twice as long each time."""
        self._losses[process] += 1
        self._postponed_until_s.clear()
        pause_s = min(LOST_S * 2.0 ** min(self._losses[process], DOUBLINGS_MAX), self.pause_s)
        self._paused_until_s[process] = max(self._paused_until_s.get(process, 0.0), now + pause_s)

    def answers(self, process: ProcessId) -> None:
        """Note that what was sent has reached a peer: the next broken connection is the first one again."""
        self._losses.pop(process, None)

    def credit(self, process: ProcessId) -> None:
        """End the pause of a peer that has a free slot."""
        self._paused_until_s.pop(process, None)
        self._full_until_s.pop(process, None)
        self._free.pop(process, None)

    def end_pauses(self, now: float) -> bool:
        """End pauses that have lasted long enough; return whether what waits may go to a peer since the last call."""
        due = [process for process, until_s in self._pauses() if until_s <= now]
        for process in due:
            self._postponed_until_s.pop(process, None)
            self.credit(process)
        freed, self._freed = self._freed, False
        return bool(due) or freed

    def next_pause_over_s(self) -> float | None:
        """Return when the first pause ends."""
        return min((until_s for _, until_s in self._pauses()), default=None)

    def _pauses(self) -> Iterator[tuple[ProcessId, float]]:
        return chain(self._paused_until_s.items(), self._full_until_s.items(), self._postponed_until_s.items())

    def others(self, process: ProcessId) -> bool:
        """Return whether another peer may take a microbatch now."""
        return bool(self._alive.keys() - self._paused_until_s.keys() - self._draining.keys() - {process})

    @property
    def insist(self) -> bool:
        """Whether all peers are draining: the last peers of a stage still have to work."""
        return self._draining.keys() >= self._alive.keys()

    def ask(self, process: ProcessId) -> None:
        """Note that a peer is asked for a slot."""
        self._asking[process] += 1

    def end_question(self, process: ProcessId) -> None:
        """Note that a peer has answered, or that its answer is not awaited any more."""
        self._asking[process] -= 1
        if not self._asking[process]:
            del self._asking[process]  # who is asked nothing is looked at by no choice
        self._freed = True

    @property
    def enough(self) -> bool:
        """Whether so many peers were asked in vain that what is left can wait for their credits."""
        return len(self._paused_until_s) >= ASKED * len(self._alive).bit_length()

    def refused(self) -> set[ProcessId]:
        """Return the peers that get nothing: paused ones, and draining ones where there are others."""
        return {*self._paused_until_s, *(() if self.insist else self._draining)}

    def asked_out(self) -> set[ProcessId]:
        """Return the peers that get no more questions until they answer those that they have got, or have a slot."""
        return {process for process, count in self._asking.items() if count >= self._free.get(process, 1)}.union(
            self._full_until_s, self._postponed_until_s
        )
