"""Who decides on which stage a peer works: nobody, SWARM's Algorithm 2, and swarmflow's own leader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import Membership
from swarmflow.core.membership.placement import better_placed, place, spare
from swarmflow.core.protocol.messages import Join
from swarmflow.core.protocol.types import Member, Plan, ProcessId

Stages = Sequence[Sequence[int]]  # the peers of each stage, by number


class Spreading(Protocol):
    """A strategy. All peers are alike, and it is told of all that come, go, and have loaded what they were given.

    period_s: how often it is asked for a move; 0: never. at_once: it is also asked when a stage has lost everybody.
    """

    @property
    def period_s(self) -> float:
        """Seconds."""
        ...

    @property
    def at_once(self) -> bool:
        """Whether somebody watches the stages all the time."""
        ...

    def place(self, stages: Stages) -> int:
        """The stage for a peer that comes. stages: who works where, those still loading among them."""
        ...

    def enter(self, peer: int, stage: int, now_s: float) -> None:
        """A peer is on a stage from now on, and loads it."""
        ...

    def gone(self, peer: int) -> None:
        """A peer has left."""
        ...

    def loaded(self, peer: int) -> None:
        """A peer has loaded the stage that it was given."""
        ...

    def move(self, stages: Stages, now_s: float) -> tuple[int, int] | None:
        """A peer and the stage that it is to serve from now on, if any is to move."""
        ...


@dataclass(slots=True)
class Unmoved:
    """No rebalancing. random: newcomers go to a random stage; None: to the smallest one."""

    random: Random | None
    period_s: float = 0.0
    at_once: bool = False

    def place(self, stages: Stages) -> int:
        """At random, or on the smallest stage, of several the first."""
        return smallest(stages) if self.random is None else self.random.randrange(len(stages))

    def enter(self, peer: int, stage: int, now_s: float) -> None:
        """Not kept."""

    def gone(self, peer: int) -> None:
        """Not kept."""

    def loaded(self, peer: int) -> None:
        """Not kept."""

    def move(self, stages: Stages, now_s: float) -> tuple[int, int] | None:
        """Never."""
        return None


@dataclass(slots=True)
class AlgorithmTwo(Unmoved):
    """SWARM's Algorithm 2: every T seconds one peer of the least loaded stage goes to the most loaded one.

    What the paper prints mixes L with l and DHT[s] with DHT[s_min], and moves a peer wherever two loads differ. Each is
    read in its favour: the load is the work by those who do it, an empty stage has the highest one, a peer of the least
    loaded stage goes, and only if the highest load falls by it. All measure at the same moment.
    """

    def move(self, stages: Stages, now_s: float) -> tuple[int, int] | None:
        """From the largest stage to the smallest one, of several the first ones."""
        sizes = [len(peers) for peers in stages]
        to, largest = smallest(stages), max(sizes)
        return (stages[sizes.index(largest)][0], to) if largest - sizes[to] >= 2 else None


@dataclass(slots=True)
class ProductionTable:
    """swarmflow: the very table that its leader decides by (`Membership`), asked as the leader asks it.

    period_s: of the edges between two steps, where peers may move. rebalance_s: T, how often one may.
    """

    stages: int
    period_s: float
    rebalance_s: float
    at_once: bool = True
    membership: Membership = field(init=False)

    def __post_init__(self) -> None:
        self.membership = Membership(Plan(self.stages, 1))

    def place(self, stages: Stages) -> int:
        """As a peer that asks for no stage is placed."""
        return place(self.membership, -1)[0]

    def enter(self, peer: int, stage: int, now_s: float) -> None:
        """As a peer joins."""
        join = Join("peer", "", "", Member(_id(peer), -1), 1.0, self.rebalance_s)
        self.membership.mark(self.membership.enter(join, stage, now_s), MemberPhase.LOADING)

    def gone(self, peer: int) -> None:
        """As a peer is forgotten that is lost."""
        self.membership.leave(_id(peer))

    def loaded(self, peer: int) -> None:
        """As a peer says that it is ready."""
        known = self.membership.known[_id(peer)]
        self.membership.mark(known, MemberPhase.READY)
        known.version = 0

    def move(self, stages: Stages, now_s: float) -> tuple[int, int] | None:
        """As the leader moves a peer between two steps, or at once where a stage has lost everybody."""
        empty = [stage for stage, peers in enumerate(stages) if not peers]
        if empty:
            found = spare(self.membership, empty, empty[0])
        else:
            found = next(iter(better_placed(self.membership, 0, now_s)), None)  # one: no connection's rate is known
            if found is not None:
                self.membership.known[found.process].settled_s = self.membership.moved_s = now_s
        if found is None:
            return None
        known = self.membership.known[found.process]
        self.membership.move(known, found.stage)
        self.membership.mark(known, MemberPhase.LOADING)
        return int(known.process.name[1:]), found.stage


def _id(peer: int) -> ProcessId:
    return ProcessId(f"p{peer:06d}", 1)


def smallest(stages: Stages) -> int:
    """The stage with the fewest peers, of several the first."""
    return min(range(len(stages)), key=lambda stage: (len(stages[stage]), stage))
