"""The peers of the next stage, as one sender sees them: who may be given a microbatch now, and who is asked first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from swarmflow.core.iwrr import Iwrr
from swarmflow.core.types import Member, ProcessId


def shares(members: Iterable[Member], senders: int) -> dict[ProcessId, int]:
    """What of each peer's capacity falls to one of so many senders."""
    return {member.process: member.capacity // max(1, senders) for member in members}


@dataclass(slots=True)
class Takers:
    """Who lives, who is full or wants to leave, and how much of this sender's each of them holds.

    A peer whose room is shared by many senders is often full, and says so only when it has got a tensor in vain: 31 of
    223 transfers in four iterations of experiments/gwtf_churn. So whoever has used up its share of a peer's capacity
    asks first, which costs one round trip. Without shares nobody is asked.
    """

    router: Iwrr
    pause_s: float = 5.0
    held: Counter[ProcessId] = field(default_factory=Counter)
    _shares: Mapping[ProcessId, int] | None = None
    _alive: dict[ProcessId, None] = field(default_factory=dict)
    _paused_until_s: dict[ProcessId, float] = field(default_factory=dict)
    _draining: dict[ProcessId, None] = field(default_factory=dict)

    def open(self, peers: tuple[ProcessId, ...], shares: Mapping[ProcessId, int] | None) -> None:
        """A new epoch: these peers serve the stage, and hold nothing."""
        self.held.clear()
        self._paused_until_s.clear()
        self._draining.clear()
        self._alive = dict.fromkeys(peers)
        self._shares = shares
        self.router.announce(peers)

    @property
    def alive(self) -> tuple[ProcessId, ...]:
        """The peers of the stage."""
        return tuple(self._alive)

    def __contains__(self, process: object) -> bool:
        return process in self._alive

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

    def choose(self, but: ProcessId | None) -> ProcessId | None:
        """Who gets the next one. but: not this one."""
        paused = self._paused_until_s.keys()
        excluded = {*paused, *(() if self.insist else self._draining), *(() if but is None else (but,))}
        choice = self.router.choose(excluded)
        return None if choice is None else choice.process

    def asks(self, process: ProcessId) -> bool:
        """Whether this sender has used up its share of what the peer holds."""
        return self._shares is not None and self.held[process] >= self._shares.get(process, 0)
