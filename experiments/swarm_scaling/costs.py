"""What the decisions of a simulated swarm cost: messages, their bytes and the CPU of this computer, by role."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from experiments.swarm_scaling.alone import RecordedLife
from experiments.swarm_scaling.books import of_books
from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.protocol.actions import Action, RunForward, Send
from swarmflow.core.protocol.events import BackwardComputed, Event, LossComputed, Received
from swarmflow.core.protocol.types import Plan, ProcessId
from swarmflow.simulator.garbage import searched_rarely
from swarmflow.simulator.machines import Production, TrainerStart
from swarmflow.simulator.sizes import wire_bytes

M = TypeVar("M")


@dataclass(slots=True)
class Cost:
    """Totals of one role: its messages, and what its decisions cost this computer."""

    clock: Callable[[], float]  # the CPU time of this computer, in seconds
    timed: int = 1  # one in so many decisions is timed, and stands for the others
    decisions: int = 0
    cpu_s: float = 0.0
    messages: int = 0  # sent
    sent_bytes: int = 0  # of the headers of messages, without tensors
    received_bytes: int = 0  # the same of received messages
    books_bytes: int = 0  # the leader's books among the received bytes
    calls: int = 0  # function calls of the `counted` decisions: unlike the time, the same on any computer
    counted: int = 0  # decisions whose function calls are counted, one in `timed`, never one that is timed

    def watch(
        self, decide: Callable[[M, Event, float], list[Action]], machine: M, event: Event, now: float
    ) -> list[Action]:
        """One decision, and what it led to."""
        self.decisions += 1
        if type(event) is Received:
            size_bytes = wire_bytes(event.message)
            self.received_bytes += size_bytes
            if of_books(event):
                self.books_bytes += size_bytes
        turn = self.decisions % self.timed
        if turn == 0:
            began_s = self.clock()
            actions = decide(machine, event, now)
            self.cpu_s += self.timed * (self.clock() - began_s)
        elif turn == 1:
            sys.setprofile(self._called)
            actions = decide(machine, event, now)
            sys.setprofile(None)
            self.counted += 1
        else:
            actions = decide(machine, event, now)
        for action in actions:
            if type(action) is Send:
                self.messages += 1
                self.sent_bytes += wire_bytes(action.message)
        return actions

    def _called(self, frame: object, event: str, argument: object) -> None:
        self.calls += event in ("call", "c_call")


@dataclass(slots=True)
class WorkSpan:
    """When the first pass of a step began and the last one ended."""

    began_s: float | None = field(default=None, init=False)
    ended_s: float = field(default=0.0, init=False)

    def watch(self, event: Event, actions: list[Action], now: float) -> None:
        """See what a peer computes."""
        if isinstance(event, BackwardComputed | LossComputed):
            self.ended_s = now
        elif self.began_s is None and any(isinstance(action, RunForward) for action in actions):
            self.began_s = now

    @property
    def seconds(self) -> float:
        """From the beginning to the end. Raises RuntimeError: nothing was computed."""
        if self.began_s is None:
            raise RuntimeError("no peer has computed anything")
        return self.ended_s - self.began_s


class _MeteredPeer(PeerMachine):
    cost: Cost
    work: WorkSpan
    life: RecordedLife | None = None

    def handle(self, event: Event, now: float) -> list[Action]:
        actions = self.cost.watch(PeerMachine.handle, self, event, now)
        self.work.watch(event, actions, now)
        if self.life is not None:
            self.life.events.append((event, now))
            self.life.actions += len(actions)
        return actions


class _Leader(TrainerMachine):
    cost: Cost

    def handle(self, event: Event, now: float) -> list[Action]:
        return self.cost.watch(TrainerMachine.handle, self, event, now)


class Metered(Production):
    """The production machines, measured. peers: all of them. leader: the trainer that leads. work: of one step.

    lives: of one peer in so many (every), if any, all that happened to it.
    """

    def __init__(self, clock: Callable[[], float], timed: int = 1, every: int = 0) -> None:
        self.clock, self.every = clock, every
        self.peers, self.leader = Cost(clock, timed), Cost(clock, timed)
        self.work = WorkSpan()
        self.lives: list[RecordedLife] = []
        self._made = 0

    @cached_property
    def alone_s(self) -> tuple[float, float]:
        """Of those whose lives are kept, without the others: CPU time of a decision, and of a life's on the books."""
        with searched_rarely():  # a search for garbage looks at the whole world, and would be taken for a decision's
            spent = [life.again_s(self.clock) for life in self.lives]
        decisions = sum(not of_books(event) for life in self.lives for event, _ in life.events)
        return sum(other_s for other_s, _ in spent) / decisions, sum(books_s for _, books_s in spent) / len(spent)

    def peer(self, me: ProcessId, lease: LeaderLease, plan: Plan, settings: PeerSettings) -> PeerMachine:
        """Return the machine of a peer, watched."""
        peer = _MeteredPeer(me, lease, plan, settings)
        peer.cost, peer.work = self.peers, self.work
        self._made += 1
        if self.every and self._made % self.every == 0:
            peer.life = RecordedLife.of(me, lease, plan, settings)
            self.lives.append(peer.life)
        return peer

    def trainer(self, start: TrainerStart) -> TrainerMachine:
        """Return the machine of a trainer, watched where it leads."""
        if start.leads is None:
            return super().trainer(start)
        leader = start.machine(_Leader)
        leader.cost = self.leader
        return leader
