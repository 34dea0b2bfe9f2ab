"""Processes of a swarm that negotiate flows among each other, and messages of any content."""

from __future__ import annotations

import math
import types
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import fields
from random import Random
from typing import Any, Union, get_args, get_origin, get_type_hints

from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import Negotiate
from swarmflow.core.protocol.messages.gwtf import InOrder, OrderedGwtfMessage
from swarmflow.core.protocol.messages.negotiation import Exchange, FlowMessage
from swarmflow.core.protocol.types import Member, Plan, ProcessId, Roster
from swarmflow.core.routing.compute_timer import ComputeTimer
from swarmflow.core.routing.flow.live import ROUND_S
from swarmflow.core.routing.flow.negotiation import TRAINER
from swarmflow.core.routing.flow.negotiations import Negotiation, negotiation_of
from swarmflow.core.routing.flow.router import FlowRouter
from swarmflow.core.routing.shortest import Shortest
from tests.core.samples import member, process

STAGES = 5
TRAINERS = ("t0", "t1")
ROSTER = Roster(
    tuple(tuple(member(f"p{stage}{n}", stage) for n in range(2)) for stage in range(STAGES)),
    tuple(Member(process(name), -1) for name in TRAINERS),
)
MEMBERS = [m.process for m in ROSTER.members]


def negotiation(name: str, router: str, roster: Roster = ROSTER, now: float = 0.0) -> Negotiation:
    """Return the negotiation of a process, which has begun."""
    stage = TRAINER if name.startswith("t") else int(name[1])
    plan = Plan(STAGES, 8, router=router)
    made = negotiation_of(process(name), stage, plan, FlowRouter(Shortest(name)), ComputeTimer(), 4)
    assert made is not None
    made.open(roster, now)
    return made


class Swarm:
    """All processes of a roster, whose messages arrive at once, if they are not lost."""

    def __init__(self, roster: Roster, router: str = "flow", lost: float = 0.0) -> None:
        self.all = {m.process: negotiation(m.process.name, router, roster) for m in roster.members}
        self.router, self.lost, self.random = router, lost, Random(0)
        self.now = 0.0
        self.sent = 0
        self.counted: defaultdict[tuple[str, str], float] = defaultdict(float)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            for name in list(self.all):
                self.perform(name, self.all[name].tick(self.now))
            self.now += ROUND_S / 2

    def perform(self, sender: ProcessId, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Count):
                self.counted[action.name, action.label] += action.amount
                continue
            assert isinstance(action, Send), action
            assert isinstance(action.message, Negotiate)
            self.sent += action.to in self.all
            if action.to in self.all and self.random.random() >= self.lost:
                assert abs(place(action.to) - place(sender)) in (0, 1) or "t" in action.to.name + sender.name
                self.perform(action.to, self.all[action.to].received(sender, action.message, self.now))

    def die(self, name: str) -> None:
        dead = process(name)
        del self.all[dead]
        for other, part in list(self.all.items()):
            self.perform(other, part.gone(dead, self.now))

    def enter(self, name: str, roster: Roster) -> None:
        self.all[process(name)] = negotiation(name, self.router, roster, self.now)
        for other, part in list(self.all.items()):
            self.perform(other, part.open(roster, self.now))

    def units(self, stage: int) -> dict[str, int]:
        """Return the units that go out from each peer of a stage."""
        peers = [p for p in self.all if place(p) == stage]
        return {p.name: sum(self.all[p].router.outflow.values()) for p in peers}


def place(name: ProcessId) -> int:
    return -1 if name.name.startswith("t") else int(name.name[1])


def generated(kind: Any, random: Random) -> Any:  # noqa: ANN401
    """Anything of a type; processes are mostly those of the roster."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind is ProcessId:
        return random.choice([*MEMBERS, process("x")])
    if kind is int:
        return random.choice((-1, 0, 1, 1, 1, 2, 3, 4, 9, 1 << 40))
    if kind is float:
        return random.choice((0.0, 1.0, 2.5, 1e3, -1.0, math.inf, math.nan, 1e300))
    if kind is bool:
        return random.random() < 0.5
    if origin in (Union, types.UnionType):
        return generated(random.choice(inside), random)
    if kind is type(None):
        return None
    if origin is tuple and inside[1:] == (...,):
        return tuple(generated(inside[0], random) for _ in range(random.choice((0, 1, 1, 2, 5))))
    if origin is tuple:
        return tuple(generated(part, random) for part in inside)
    if kind is Any:
        return generated(FlowMessage, random)
    if kind is InOrder:
        numbers = random.choice((0, 1, 1, 1 << 60)), random.choice((-1, 1, 1, 1, 2, 3, 1 << 50)), random.choice((0, 1))
        return InOrder(*numbers, generated(random.choice((FlowMessage, OrderedGwtfMessage)), random))
    if kind is Exchange and random.random() < 0.7:
        return Exchange(random.choice(MEMBERS), random.choice((1, 2, 3)))
    hints = get_type_hints(kind)
    return kind(**{field.name: generated(hints[field.name], random) for field in fields(kind)})
