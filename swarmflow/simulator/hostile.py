"""Sends live simulated swarms well-formed messages that cannot be true; they must end no process and change no digest.

The messages are drawn from the types of the message classes, so that a new class or field is covered as soon as it
exists: each field has a value that could stand there now, or one that never may. Three kinds are sent, to peers,
trainers and the leader in mid-run: any message from a stranger; a message that the role of a member does not send; and
one that it sends, with at least one impossible value. Where GWTF negotiates, members also send its machine what it
takes for a neighbour's next messages: these may be true, and change nothing but routes.
"""

from __future__ import annotations

import types
import typing
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from random import Random
from typing import Any

from swarmflow.core.protocol.events import Received
from swarmflow.core.protocol.messages import (
    Accepted,
    Adopt,
    Backward,
    Cancel,
    Committed,
    CopiesHeld,
    CreditAvailable,
    CreditReturned,
    Denied,
    Deposed,
    Done,
    DownstreamCost,
    Drain,
    Elect,
    ElectionReport,
    Forward,
    Heartbeat,
    Join,
    LinkGains,
    LinkRateReport,
    LoadFailed,
    MemberFailed,
    Message,
    Negotiate,
    Overflow,
    PeerSummary,
    Prepared,
    Probe,
    Probed,
    Ready,
    Recall,
    Recalled,
    ReducePart,
    ReduceSum,
    RelayedTensor,
    RelayTensor,
    ReserveSlot,
    Routed,
    SlotReserved,
    SnapshotTaken,
    Suspect,
    Unprepared,
    Unrepairable,
)
from swarmflow.core.protocol.messages.checks import BODIES_MAX, COUNT_MAX, NAMED_TUPLES, PROOF_BYTES_MAX
from swarmflow.core.protocol.messages.gwtf import FlowId, InOrder, OrderedGwtfMessage
from swarmflow.core.protocol.messages.negotiation import FlowMessage, Reliable
from swarmflow.core.protocol.types import Plan, ProcessId, tied_ends
from swarmflow.core.routing.flow.gwtf import GwtfRelay
from swarmflow.core.routing.flow.gwtf_plausibility import ends as named
from swarmflow.core.routing.flow.gwtf_plausibility import is_plausible
from swarmflow.core.routing.flow.gwtf_source import GwtfSource
from swarmflow.core.routing.flow.plausibility import RELIABLE_TYPES
from swarmflow.simulator.faults import FuzzSwarm, finish
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.settings import Settings
from swarmflow.simulator.world import World, alive_processes

KINDS: tuple[type, ...] = typing.get_args(Message)
BURST_EVERY_S = 0.05
STRANGER = ProcessId("stranger", 1)
NEVER_INT = (-1, -2, -(2**63), COUNT_MAX + 1, 2**63, 2**64 - 1)
NEVER_FLOAT = (float("nan"), float("inf"), float("-inf"), -1e300, 1e305)
LONG = "\N{SNOWMAN}" * 2000
POISONED = (0.0, 0.05, 0.3)  # shares of the fields of a message
FORGED_SHARE = 0.25  # of the messages of members where GWTF negotiates: messages of that, on which its machine acts
FORGED_TRIES = 16  # to make one that names processes and flows in their places
REAL_FLOWS_SHARE = 0.7  # of the flows that these name
NEW_SESSION_SHARE = 0.1  # of the same
SESSIONS_FROM = 1 << 50  # above those of any machine

_HOPS = (Forward, ReserveSlot, Adopt, Cancel, CreditReturned, Recalled, Negotiate, Probe, DownstreamCost)
_BACK = (Accepted, SlotReserved, Denied, CreditAvailable, Routed, Backward, Recall, Probed)
_PEERS = (*_HOPS, *_BACK, RelayTensor, RelayedTensor, ReducePart, ReduceSum, LinkRateReport)
_TO_LEADER = (
    Ready,
    LoadFailed,
    Drain,
    Heartbeat,
    PeerSummary,
    LinkGains,
    LinkRateReport,
    Suspect,
    Done,
    Prepared,
    Unprepared,
    Unrepairable,
    Overflow,
    Committed,
    SnapshotTaken,
    CopiesHeld,
    Join,
)
_MAY_SAY: dict[tuple[str, str], tuple[type, ...]] = {
    ("peer", "peer"): _PEERS,
    ("peer", "trainer"): (*_BACK, Negotiate, ElectionReport, Deposed),
    ("peer", "leader"): (*_BACK, *_TO_LEADER, Negotiate, ElectionReport, Deposed),
    ("trainer", "peer"): (*_HOPS, Elect, MemberFailed),  # MemberFailed: it may lead by then, in a later term
    ("trainer", "trainer"): (Elect, ElectionReport, Deposed, Negotiate, MemberFailed),
    ("trainer", "leader"): (*_TO_LEADER, ElectionReport, Deposed, Elect, Negotiate),
    ("leader", "peer"): KINDS,
    ("leader", "trainer"): KINDS,
}


@cache
def _hints(kind: type) -> tuple[tuple[str, Any], ...]:
    """The fields of a message with their types."""
    hints = typing.get_type_hints(kind)  # a millisecond each time
    names = list(hints) if kind in NAMED_TUPLES else [each.name for each in fields(kind)]
    return tuple((name, hints[name]) for name in names)


@dataclass(slots=True)
class Mint:
    """Makes messages of any class from the types of its fields."""

    random: Random
    plan: Plan
    names: list[ProcessId]  # processes that messages may name
    epochs: list[Any]  # epochs that messages may name
    flows: list[FlowId] = field(default_factory=list)  # of a GWTF negotiation that messages may name
    poison: float = field(init=False, default=0.0)  # the share of impossible values in the present message
    poisoned: int = field(init=False, default=0)  # impossible values in the present message so far

    def message(self, kind: type, poison: float) -> Any:  # noqa: ANN401
        """Return a message of a class, with about this share of impossible values. `poisoned` counts them."""
        self.poison, self.poisoned = poison, 0
        return self._made(kind)

    def _made(self, kind: type) -> Any:  # noqa: ANN401
        return kind(**{name: self._value(hint, name) for name, hint in _hints(kind)})

    def _value(self, hint: Any, name: str) -> Any:  # noqa: ANN401
        draw = self.random
        bad = draw.random() < self.poison
        if hint == FlowMessage:
            return self._flow_message()
        if hint is FlowId and self.flows and draw.random() < REAL_FLOWS_SHARE:
            return draw.choice(self.flows)
        if isinstance(hint, types.UnionType):
            kinds = typing.get_args(hint)
            return None if types.NoneType in kinds and draw.random() < 0.5 else self._value(kinds[0], name)
        if typing.get_origin(hint) is tuple:
            return self._items(typing.get_args(hint), name, bad)
        if hint is ProcessId:
            self.poisoned += bad
            return ProcessId(draw.choice(("", LONG)), draw.choice((0, -1))) if bad else draw.choice(self.names)
        if hint in _LEAVES:
            self.poisoned += bad and hint is not bool
            return _LEAVES[hint](self, name, bad)
        if hint.__name__ == "Epoch" and not bad:
            return draw.choice(self.epochs)
        return self._made(hint)

    def _items(self, items: tuple[Any, ...], name: str, bad: bool) -> tuple[Any, ...]:
        if Ellipsis not in items:
            return tuple(self._value(item, name) for item in items)
        count = self.random.randint(0, 3)
        values = tuple(self._value(items[0], name) for _ in range(count))
        if bad and values and self.random.random() < 0.02:
            self.poisoned += 1
            return values * 40_000
        return values

    def _flow_message(self) -> Any:  # noqa: ANN401
        """Return a message of the flow negotiation; it has its own checks, and its values do not count as poisoned."""
        kind, before = self.random.choice(typing.get_args(FlowMessage)), self.poisoned
        if kind is Reliable:
            message: Any = Reliable(self.random.randint(0, 9), self._made(self.random.choice(RELIABLE_TYPES)))
        elif kind is InOrder:
            numbers = self.random.randint(0, 3), self.random.randint(1, 3), self.random.randint(0, 3)
            message = InOrder(*numbers, self._made(self.random.choice(typing.get_args(OrderedGwtfMessage))))
        else:
            message = self._made(kind)
        self.poisoned = before
        return message

    def in_order(self, session: int, number: int) -> InOrder:
        """Return a message of GWTF's negotiation with this number in its session."""
        return InOrder(session, number, 0, self._made(self.random.choice(typing.get_args(OrderedGwtfMessage))))

    def whole(self, name: str, bad: bool) -> int:
        """Return an integer."""
        if bad:
            return self.random.choice(NEVER_INT)
        most = {"stage": self.plan.stages - 1, "index": self.plan.microbatches - 1, "incarnation": 99}.get(name, 3)
        return self.random.randint(0, most)

    def number(self, name: str, bad: bool) -> float:
        """Return a float."""
        return self.random.choice(NEVER_FLOAT) if bad else self.random.choice((0.0, 0.5, 1.0))

    def text(self, name: str, bad: bool) -> str:
        """Return a string."""
        return LONG if bad else self.random.choice(("", "x", "sim", "run", "peer", "trainer", "full", "stage-0"))

    def proof(self, name: str, bad: bool) -> bytes:
        """Return bytes that prove nothing."""
        return bytes(PROOF_BYTES_MAX + 1) if bad else self.random.choice((b"", b"x"))

    def truth(self, name: str, bad: bool) -> bool:
        """Return a bool."""
        return self.random.random() < 0.5


_LEAVES: dict[Any, Callable[[Mint, str, bool], Any]] = {
    bytes: Mint.proof,
    int: Mint.whole,
    float: Mint.number,
    str: Mint.text,
    bool: Mint.truth,
}


@dataclass(slots=True)
class ForgedFlows:
    """Messages of GWTF's negotiation that their receiver takes for the next ones of a neighbour, whatever they say."""

    world: World
    random: Random
    _numbers: dict[tuple[ProcessId, ProcessId], tuple[int, int]] = field(init=False, default_factory=dict)

    @property
    def drawn(self) -> bool:
        """Whether to make up such a message now."""
        return self.world.settings.plan.router in ("gwtf", "gwtf-sum") and self.random.random() < FORGED_SHARE

    def next(self, mint: Mint, sender: ProcessId) -> tuple[ProcessId, Negotiate] | None:
        """Return a neighbour of a member, and the next message to it; None: it has none.

        It belongs to a session that the sender's machine knows nothing of, and that begins anew at times.
        """
        draw, view = self.random, None if (own := self._node(sender)) is None else own.view
        known = [] if view is None else [p for p in (*view.before, *view.beside, *view.after) if self._node(p)]
        if view is None or not known:
            return None
        to = draw.choice(known)
        session, number = self._numbers.get((sender, to), (SESSIONS_FROM, 0))
        if draw.random() < NEW_SESSION_SHARE:
            session, number = session + 1, 0
        self._numbers[sender, to] = session, number + 1
        return to, Negotiate(view.stage, self._message(mint, sender, to, session, number + 1))

    def _message(self, mint: Mint, sender: ProcessId, to: ProcessId, session: int, number: int) -> InOrder:
        node = self._node(to)
        assert node is not None
        tables = (node.flows,) if isinstance(node, GwtfRelay) else (node.head, node.sink)
        units = [unit for table in tables for unit in table.table.values()]
        ends = [end.flow for unit in units for end in (unit.upstream, unit.downstream) if end is not None]
        mint.flows = [*(unit.flow for unit in units), *ends]
        for _ in range(FORGED_TRIES):
            message = mint.in_order(session, number)
            receivers, senders, sources = named(message.message)
            fits = {*receivers} <= {*node.view.after} and {*senders} <= {*node.view.before}
            fits &= {*sources} <= {*self.world.trainers}
            if fits and is_plausible(message.message, sender, node.view):
                break
        return message

    def _node(self, process: ProcessId) -> GwtfRelay | GwtfSource | None:
        host = self.world.hosts.get(process)
        node = None if host is None else getattr(host.machine.flows, "node", None)
        return node if isinstance(node, GwtfRelay | GwtfSource) else None


@dataclass(slots=True)
class Attack:
    """Sends a live world hostile messages, in bursts, from strangers and from some of its members."""

    world: World
    messages: int  # to send in all
    members: tuple[str, ...]  # names of processes that also send hostile messages, beside what their machines do
    random: Random
    burst: int = 4
    sent: Counter[str] = field(init=False, default_factory=Counter)  # by class of the message
    flows: ForgedFlows = field(init=False)

    def __post_init__(self) -> None:
        self.flows = ForgedFlows(self.world, self.random)

    def begin(self) -> None:
        """Plan the first burst."""
        self.world.clock.after(self.random.uniform(0.0, 2.0), self._strike)

    def _strike(self) -> None:
        if self.world.ended or self.sent.total() >= self.messages:
            return
        for _ in range(min(self.burst, self.messages - self.sent.total())):
            self._send()
        self.world.clock.after(self.random.expovariate(1 / BURST_EVERY_S), self._strike)

    def _send(self) -> None:
        world, draw = self.world, self.random
        alive = alive_processes(world)
        if not alive or world.ended:
            return
        to = draw.choice(alive)
        message, sender = self._next_message(to, alive)
        if sender != STRANGER and self.flows.drawn:
            mint = Mint(draw, world.settings.plan, alive, self._epochs(to))
            to, message = self.flows.next(mint, sender) or (to, message)
        most = BODIES_MAX.get(type(message), 0) if draw.random() < 0.9 else 3
        sizes = [draw.choice((0, 1, 1 << 20)) for _ in range(draw.randint(0, most))]
        bodies = tuple(world.store(to, "garbage", size) for size in sizes)
        self.sent[type(message).__name__] += 1
        role = None if sender == STRANGER else world.role(sender)
        world.deliver(to, Received(sender, message, bodies, role))

    def _next_message(self, to: ProcessId, alive: list[ProcessId]) -> tuple[Message, ProcessId]:
        """Return a message and its sender: a stranger, a member of another role, or one that sends wrong values."""
        draw, world = self.random, self.world
        mint = Mint(draw, world.settings.plan, [*alive, STRANGER], self._epochs(to))
        kind = KINDS[self.sent.total() % len(KINDS)]
        members = [process for process in alive if process.name in self.members and process != to]
        sender = draw.choice([STRANGER, *members]) if members else STRANGER
        may = _MAY_SAY.get((self._role(sender), self._role(to)), ()) if sender != STRANGER else ()
        if kind not in may:
            return mint.message(kind, draw.choice(POISONED)), sender
        for share in POISONED * 9:
            message = mint.message(kind, share)
            if mint.poisoned:
                return message, sender
        return mint.message(kind, 0.0), STRANGER  # the message has no value that could be wrong

    def _role(self, process: ProcessId) -> str:
        if process == self.world.leader:
            return "leader"
        return "trainer" if process in self.world.trainers else "peer"

    def _epochs(self, to: ProcessId) -> list[Any]:
        epoch = self.world.hosts[to].machine.epoch
        return [epoch, epoch, type(epoch)(epoch.generation, epoch.step + 1), type(epoch)(0, 0)]


def swarm_of(seed: int) -> FuzzSwarm:
    """The swarm of a seed."""
    draw = Random(f"hostile {seed}")
    router = draw.choice(("shortest", "iwrr", "flow", "gwtf"))
    stages, microbatches = draw.choice((1, 2, 3)), draw.choice((4, 8))
    shared = tied_ends(stages) if draw.random() < 0.5 else ()
    plan = Plan(stages, microbatches, shared, (), router, draw.choice((0, 8 << 20)))
    settings = Settings(
        plan,
        steps=12,
        capacity=draw.choice((2, 4)),
        latency_s=(0.001, 0.01),
        load_s=(0.05, 0.3),
        checkpoint_every=2,
        validate_every=draw.choice((0, 3)),
    ).timed(late_s=3.0)
    return FuzzSwarm(settings, peers=plan.stages * draw.choice((2, 3)), trainers=draw.choice((1, 2, 3)))


def attacked(seed: int, messages: int) -> tuple[World, Counter[str]]:
    """Play a seed with so many hostile messages, and without. Raises InvariantViolated, or what a machine raised.

    The same digests have to be on disk in the end. No process may have ended but by the end of the run, and none may
    have had to join again that is not one of the senders, unless the leader (t0) is.
    """
    scenario, draw = swarm_of(seed), Random(f"attack {seed}")
    calm = scenario.start(seed)
    finish(calm)
    world = scenario.start(seed)
    members = (f"p{draw.randrange(scenario.peers)}", f"t{draw.randrange(scenario.trainers)}")
    attack = Attack(world, messages, members, draw)
    attack.begin()
    finish(world, hostile=members)
    steps = scenario.settings.steps
    if world.disks.durable[steps] != calm.disks.durable[steps]:
        raise InvariantViolated(f"seed {seed}: other digests than those of the undisturbed run")
    ended = [line for line in world.log if " exits: " in line and f"finished at version {steps}" not in line]
    refused = " exits: sent what cannot be: Join"  # a field of it, or its bodies: the sender is refused for good
    ended = [line for line in ended if line.split()[1] not in members or refused not in line]
    if ended:
        raise InvariantViolated(f"seed {seed}: a process ended: {ended[0]}")
    lives = Counter(process.name for process in world.hosts if "t0" not in members and process.name not in members)
    if lives and max(lives.values()) > 1:
        raise InvariantViolated(f"seed {seed}: a process that sent nothing had to join again: {lives.most_common(1)}")
    return world, attack.sent
