"""Malformed frames against the real reader, decoder, links, driver and peer machine of one process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, cast, get_args

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarmflow.authority.access import AccessControl
from swarmflow.authority.owner import Owner
from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.events import StateLoaded
from swarmflow.core.protocol.messages import Granted, Join, LeaderHeartbeat, Message, OpenStep
from swarmflow.core.protocol.types import Epoch, Member, Plan, ProcessId, Roster
from swarmflow.runtime.execution.driver import Driver
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Counters
from swarmflow.runtime.execution.store import Store
from swarmflow.runtime.transport.allowance import Allowance
from swarmflow.runtime.transport.door import Caller, Door
from swarmflow.runtime.transport.frames import FrameLimits, frame_pieces, pack_front
from swarmflow.runtime.transport.hello import CONFIRMATION, LANES, Hello, pack_hello
from swarmflow.runtime.transport.limits import DOOR
from swarmflow.runtime.transport.links import Links
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.requests import Requests
from swarmflow.runtime.transport.wire import Evaluate, Request, Response, encode_header
from swarmflow.simulator.hostile import KINDS, Mint

OWNER = Owner(Ed25519PrivateKey.from_private_bytes(bytes(32)))
CERTIFIED = OWNER.shared_key()
ME, LEADER = ProcessId("victim", 1), ProcessId("leader", 1)
PLAN = Plan(2, 4)
EPOCH = Epoch(0, 0)
SENDERS = 64
LIMITS = FrameLimits()
ANYTHING = FrameLimits(1 << 32, 1 << 72, 255)
# What it is for are the frames of thousands of streams, and not how many a process may open.
OPEN = replace(DOOR, process=Allowance(1 << 40, 0.0), address=Allowance(1 << 40, 0.0))
MAGIC_BYTES, FRONT_BYTES = 4, 20


class _Closed:
    """The writing end of a stream whose other side does not read."""

    def write(self, data: Any) -> None:  # noqa: ANN401
        """Drop the bytes."""

    def close(self) -> None:
        """Nothing is open."""

    @property
    def transport(self) -> _Closed:
        """Return itself, as the transport to abort."""
        return self

    def abort(self) -> None:
        """Nothing is open."""


class _NoNode:
    """Replaces the network: streams come from the harness, and none can be opened."""

    def __init__(self) -> None:
        self.accept: Callable[..., Any] = lambda *stream: None

    async def serve(self, protocol: str, accept: Callable[..., Any]) -> None:
        """Keep the handler of streams."""
        self.accept = accept

    async def open_stream(self, *to: object) -> Any:  # noqa: ANN401
        """Raise NetworkError: no process can be reached."""
        raise ConnectionRefusedError


Damage = Literal["bit", "body", "cut", "front", "header", "types", "lengths", "noise", "replay", "hello"]
DAMAGES: tuple[Damage, ...] = get_args(Damage)


@dataclass(slots=True)
class Frames:
    """Makes streams, each with one malformed frame at its end."""

    random: Random
    _headers: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        mint = Mint(self.random, PLAN, [ME, LEADER, ProcessId("other", 3)], [EPOCH])
        made = [mint.message(kind, 0.0) for kind in KINDS for _ in range(4)]
        asked = [Request(1, "status"), Response(1, "no"), Evaluate(1, 0, 1, "a", 1, (("b", 1),))]
        self._headers = tuple(encode_header(message) for message in (*made, *asked))

    def stream(self, name: str) -> tuple[Damage, bytes]:
        """Return the kind of the damage, and all the bytes of a stream of the process with this name."""
        draw = self.random
        damage = draw.choice(DAMAGES)
        credential = CERTIFIED.bind(name)
        hello = pack_hello(Hello(OWNER.run_id, draw.choice(LANES), 1, 0, credential)) + CONFIRMATION
        if damage == "hello":
            return damage, self._flipped(hello, len(hello) - 1, 1 + draw.randrange(4))
        return damage, hello + self._frame(damage)

    def _frame(self, damage: Damage) -> bytes:
        draw, header = self.random, self.random.choice(self._headers)
        sizes = [draw.choice((0, 1, 50)) for _ in range(draw.choice((0, 0, 0, 1, 2)))]
        front, whole = pack_front(0, header, sizes, LIMITS), _whole(header, sizes)
        match damage:
            case "bit":
                return self._flipped(whole, len(front), 1)
            case "body":  # or the checksum after it
                sizes = sizes or [50]
                whole = _whole(header, sizes)
                after = len(whole) - len(pack_front(0, header, sizes, LIMITS))
                return whole[:-after] + self._flipped(whole[-after:], after, 1)
            case "cut":
                return whole[: draw.randint(1, len(whole) - 1)]
            case "front":
                return self._flipped(whole, FRONT_BYTES, 1 + draw.randrange(9))
            case "header":  # the checksum is right, the message is malformed
                return _whole(self._flipped(header, len(header), 1 + draw.randrange(3)), sizes)
            case "types":
                return pack_front(0, self._typed(header), (), LIMITS)
            case "lengths":
                sizes = [draw.choice((1 << 29, 1 << 40, 1 << 61)) for _ in range(draw.choice((1, 5, 200)))]
                return pack_front(0, header, sizes, ANYTHING)
            case "replay":
                return whole + whole
            case _:
                return draw.randbytes(draw.randint(1, 200))

    def _typed(self, header: bytes) -> bytes:
        """Return a header whose fields are of other types, too many, too few, or nested too deep."""
        draw = self.random
        name, found = msgspec.msgpack.decode(header, type=tuple[str, dict[str, Any]])
        odd: list[Any] = [None, -1, 1 << 63, "x", b"\xff", [], {}, [[[[[]]]]], 0.5, True, float("nan")]
        for key in list(found):
            if draw.random() < 0.4:
                found[key] = draw.choice(odd)
        if draw.random() < 0.3:
            found = dict(list(found.items())[: draw.randrange(len(found) + 1)])
        if draw.random() < 0.1:
            return b"\x92" + msgspec.msgpack.encode(name) + b"\x91" * draw.choice((100, 5000)) + b"\xc0"
        return msgspec.msgpack.encode(draw.choice(((name, found), (name + "x", found), found, (name,))))

    def _flipped(self, data: bytes, within: int, bits: int) -> bytes:
        damaged = bytearray(data)
        for _ in range(bits):
            damaged[self.random.randrange(within)] ^= 1 << self.random.randrange(8)
        return bytes(damaged)


def _whole(header: bytes, sizes: Sequence[int]) -> bytes:
    """Return a frame with bodies of zeros."""
    bodies = [memoryview(bytes(size)) for size in sizes]
    return b"".join(frame_pieces(pack_front(0, header, sizes, LIMITS), bodies, LIMITS.bodies_bytes_max))


class Victim:
    """A peer during a step, with all of the runtime in front of its machine."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.metrics, self.store = Metrics(), Store()
        nothing = dict.fromkeys(get_args(Action), lambda action: None)  # is computed in this process
        self.driver = Driver(ME, self.store, self.metrics, nothing, self.failures.append, lambda body: b"")
        self.machine = PeerMachine(ME, LeaderLease(LEADER), PLAN, PeerSettings(Join("peer", "", "", Member(ME, -1))))
        self._node = _NoNode()
        self._links = Links(
            cast(Node, self._node),
            ME,
            AccessControl(OWNER.run_id, CERTIFIED),
            on_message=self.driver.receive,
            on_lost=self.driver.lost,
            counters=Counters(self.metrics),
            door=Door(OPEN),
        )
        self.driver.connect(self._links, Requests(self._links))

    async def start(self) -> None:
        """Let it join, load and take part in a step."""
        await self._links.start()
        self.driver.run(self.machine, [])
        members = ((Member(ProcessId("other", 3), 0),), (Member(ME, 1),))
        opened = OpenStep(1, EPOCH, Roster(members, (Member(LEADER, -1),)), "first")
        for message in (Granted(1, 1, 0, ()), opened):
            self.hear(message)
            self.driver.post(StateLoaded(1, 0, "digest", 4, (("stage-1", 10),)))

    def hear(self, message: Message) -> None:
        """Receive a message of its leader."""
        self.driver.receive(LEADER, encode_header(message), [], "trainer")

    async def take(self, name: str, stream: bytes) -> None:
        """Read a stream of this process to its end."""
        reader = asyncio.StreamReader()
        reader.feed_data(stream)
        reader.feed_eof()
        await self._node.accept(Caller(name), reader, _Closed())

    def digest(self) -> tuple[object, ...]:
        """Return what it serves, holds and knows of the step."""
        machine = self.machine
        hops = machine.hops
        held = (
            None if hops is None else (hops.entries(machine.epoch), sorted(hops.hops), sorted(hops.admission.reserved))
        )
        known = repr(machine.epoch_view)
        return machine.phase, machine.stage, machine.version, machine.epoch, held, known, machine.leader

    async def close(self) -> None:
        """Stop."""
        self.driver.halt()
        await self._links.close(0.0)
        self.metrics.close()


async def bombard(frames: int, seed: int, on_sent: Callable[[int], None] = lambda done: None) -> Counter[str]:
    """Send so many malformed frames, each in a stream of its own. Raises AssertionError. Returns them by damage."""
    maker, victim, sent = Frames(Random(f"frames {seed}")), Victim(), Counter[str]()
    await victim.start()
    before = victim.digest()
    stray: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: stray.append(context))
    for number in range(frames):
        name = f"sender-{number % SENDERS}"
        damage, stream = maker.stream(name)
        sent[damage] += 1
        await victim.take(name, stream)
        assert not victim.failures, f"frame {number} ({damage}) ended the process: {victim.failures[0]!r}"
        assert not stray, f"frame {number} ({damage}) raised outside of any task: {stray[0]}"
        if number % 1000 == 0:
            victim.hear(LeaderHeartbeat(1, EPOCH))
            on_sent(number)
            assert victim.digest() == before, f"frame {number} ({damage}) changed the state of the process"
    assert victim.digest() == before, "the frames changed the state of the process"
    victim.hear(Granted(1, 0, 0, ()))
    assert victim.machine.stage == 0, "it does not hear its leader any more"
    await victim.close()
    return sent


def damages(sent: Counter[str]) -> Sequence[str]:
    """Return the kinds that were sent, most frequent first."""
    return [f"{count} {damage}" for damage, count in sent.most_common()]
