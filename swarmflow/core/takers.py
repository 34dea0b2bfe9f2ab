"""The peers of the next stage, as one sender sees them: who may be given a microbatch now, and who is asked first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from swarmflow.core.iwrr import Choice
from swarmflow.core.smoothing import smoothed
from swarmflow.core.types import ProcessId

LOST_S = 0.5  # half of the first pause after a connection broke
ASKED = 4  # peers that are asked in vain before one waits, times log2 of their number: in a large stage that is enough


class Router(Protocol):
    """Chooses among the peers of one stage, by what one sender has seen of them."""

    def announce(self, processes: Iterable[ProcessId]) -> None:
        """These peers, and no others, serve the stage from now on, and hold nothing."""

    def enter(self, process: ProcessId) -> None:
        """One more serves the stage."""

    def ban(self, process: ProcessId) -> None:
        """Never choose this peer again until it is announced again."""

    def choose(self, exclude: Collection[ProcessId] = (), source: ProcessId | None = None) -> Choice | None:
        """The next one, for a microbatch of this trainer. None: nobody is left."""

    def carries(self, process: ProcessId, source: ProcessId | None, more: int) -> None:
        """So many more of this trainer's microbatches are in its hands, until their gradients are back."""

    def awaits(self, process: ProcessId, count: int) -> None:
        """It has been given so many of this sender's microbatches that it has not passed on yet."""

    def measured(self, process: ProcessId, seconds: float, inside_s: float | None) -> None:
        """It has passed a microbatch on so long after it was sent. inside_s: after it had got it, if known."""

    def told(self, process: ProcessId, rest_s: float) -> None:
        """How long the best way beyond it takes, forth and back."""

    def arrived(self, process: ProcessId, seconds: float, now: float) -> None:
        """The bytes of a microbatch were there so long after they were sent."""

    def probed(self, process: ProcessId, seconds: float, now: float) -> None:
        """They would be, by a small probe."""

    def rerouted(self, process: ProcessId, seconds: float) -> None:
        """They would be, on another way than before."""

    def knows(self, process: ProcessId) -> bool:
        """Whether the way to it needs no probe."""

    @property
    def rest_s(self) -> float:
        """What those before this process are told of the way from here."""


@dataclass(slots=True)
class NextStage:
    """Who lives, who is full or wants to leave, and how much of this sender's each of them holds.

    ahead: microbatches on their way to it that it was not asked to take.

    A peer whose room is shared by many senders is often full, and says so only when it has got a tensor in vain: 31 of
    223 transfers in four iterations of experiments/gwtf_churn. So whoever has used up its share of a peer's capacity
    asks first, which costs one round trip. Without shares nobody is asked.
    """

    router: Router
    pause_s: float = 15.0
    held: Counter[ProcessId] = field(default_factory=Counter)
    ahead: Counter[ProcessId] = field(default_factory=Counter)
    _awaited: Counter[ProcessId] = field(default_factory=Counter)
    _usual_s: dict[ProcessId, float] = field(default_factory=dict)
    _anybody_s: float | None = None
    _shares: Mapping[ProcessId, int] | None = None
    _alive: dict[ProcessId, None] = field(default_factory=dict)
    _paused_until_s: dict[ProcessId, float] = field(default_factory=dict)
    _draining: dict[ProcessId, None] = field(default_factory=dict)
    _losses: Counter[ProcessId] = field(default_factory=Counter)

    def open(self, peers: tuple[ProcessId, ...], shares: Mapping[ProcessId, int] | None) -> None:
        """A new epoch: these peers serve the stage, and hold nothing."""
        self.clear()
        self._paused_until_s.clear()
        self._draining.clear()
        self._alive = dict.fromkeys(peers)
        self._shares = shares
        self._usual_s = {peer: self._usual_s[peer] for peer in peers if peer in self._usual_s}
        self.router.announce(peers)

    def clear(self) -> None:
        """Nobody holds anything any more."""
        self.held.clear()
        self.ahead.clear()
        for process in self._awaited:
            self.router.awaits(process, 0)
        self._awaited.clear()

    @property
    def alive(self) -> tuple[ProcessId, ...]:
        """The peers of the stage."""
        return tuple(self._alive)

    def __contains__(self, process: object) -> bool:
        return process in self._alive

    def enter(self, process: ProcessId, share: int) -> None:
        """One more serves the stage. share: what it has room for, of this sender's."""
        if process not in self._alive:
            self._alive[process] = None
            self.router.enter(process)
        if self._shares is not None:
            self._shares = {**self._shares, process: share}

    def gone(self, process: ProcessId) -> bool:
        """A process died. Returns whether it served the stage."""
        if process not in self._alive:
            return False
        del self._alive[process]
        self._paused_until_s.pop(process, None)
        self._draining.pop(process, None)
        self.router.ban(process)
        return True

    def denied(self, process: ProcessId, reason: str, now: float) -> None:
        """It does not take anything for now; one that wants to leave does so only if there is nobody else."""
        if reason == "draining":
            self._draining[process] = None
        else:
            self._paused_until_s[process] = now + self.pause_s

    def lost(self, process: ProcessId, now: float) -> None:
        """Its connection broke: it is left alone for a moment, and for twice as long each time."""
        self._losses[process] += 1
        pause_s = min(LOST_S * 2.0 ** self._losses[process], self.pause_s)
        self._paused_until_s[process] = max(self._paused_until_s.get(process, 0.0), now + pause_s)

    def room(self, process: ProcessId) -> None:
        """It has room again."""
        self._paused_until_s.pop(process, None)

    def rested(self, now: float) -> bool:
        """Give up pauses that have lasted long enough. Returns whether there was one."""
        due = [process for process, until_s in self._paused_until_s.items() if until_s <= now]
        for process in due:
            del self._paused_until_s[process]
        return bool(due)

    def next_rested_s(self) -> float | None:
        """When the first pause ends."""
        return min(self._paused_until_s.values(), default=None)

    def others(self, process: ProcessId) -> bool:
        """Whether somebody else would take a microbatch now."""
        return bool(self._alive.keys() - self._paused_until_s.keys() - self._draining.keys() - {process})

    @property
    def insist(self) -> bool:
        """Whether all want to leave: a stage whose last peers do still has work."""
        return self._draining.keys() >= self._alive.keys()

    def measured(self, process: ProcessId, seconds: float, inside_s: float | None) -> None:
        """It has passed a microbatch on so long after it was sent. inside_s: after it had got it, if known."""
        self._losses.pop(process, None)
        self._usual_s[process] = smoothed(self._usual_s.get(process), seconds)
        self._anybody_s = smoothed(self._anybody_s, seconds)
        self._awaited[process] -= 1
        self.router.awaits(process, self._awaited[process])
        self.router.measured(process, seconds, inside_s)

    def usual_s(self, process: ProcessId) -> float | None:
        """How long it takes to pass a microbatch on, or others do; None: nobody ever has."""
        return self._usual_s.get(process, self._anybody_s)

    def choose(self, but: ProcessId | None, source: ProcessId | None = None) -> ProcessId | None:
        """Who gets the next one, of this trainer. but: not this one. None: enough were asked; who is full says when
        it has room."""
        paused = self._paused_until_s.keys()
        if len(paused) >= ASKED * len(self._alive).bit_length():
            return None
        excluded = {*paused, *(() if self.insist else self._draining), *(() if but is None else (but,))}
        choice = self.router.choose(excluded, source)
        return None if choice is None else choice.process

    def count(self, process: ProcessId, more: int, source: ProcessId | None = None, *, awaited: bool) -> None:
        """A microbatch of this trainer comes into its hands (1), or is out of them (-1). awaited: not passed on."""
        self.held[process] += more
        self.router.carries(process, source, more)
        if awaited:
            self._awaited[process] += more
            self.router.awaits(process, self._awaited[process])

    def asks(self, process: ProcessId) -> bool:
        """Whether this sender has used up its share of what the peer holds."""
        return self._shares is not None and self.held[process] >= self._shares.get(process, 0)
