"""Drives a machine of the core: events in, actions out, one timer. The role provides the effects of actions."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from swarmflow.core.protocol.actions import Action, Release, Send
from swarmflow.core.protocol.events import BlamedError, Event, Lost, Mishandled, Received, Tick
from swarmflow.core.protocol.messages import YIELDING, Message
from swarmflow.core.protocol.messages.checks import MessageChecks
from swarmflow.core.protocol.types import Body, Padding, ProcessId, Ref, Role
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.signatures import Bodies, Signatures
from swarmflow.runtime.execution.store import Buffer, Store
from swarmflow.runtime.transport.hello import LaneName
from swarmflow.runtime.transport.links import Links
from swarmflow.runtime.transport.requests import Requests
from swarmflow.runtime.transport.wire import Evaluate, PolicyChanged, Request, Response, decode_header, encode_header

log = logging.getLogger("swarmflow")


class Machine(Protocol):
    """The machine of a peer or a trainer."""

    checks: MessageChecks  # of the messages of its run

    def handle(self, event: Event, now: float) -> list[Action]:
        """Return the actions that follow from an event."""

    def next_deadline(self) -> float:
        """Return when a Tick is due."""


Effect = Callable[[Any], None]


class Driver:
    """Feeds events to a machine and performs its actions, all of it on the event loop.

    An error of an effect or of the machine ends the driving; an error that another process' message causes in the
    machine excludes that process instead.
    """

    def __init__(
        self,
        me: ProcessId,
        store: Store,
        metrics: Metrics,
        effects: Mapping[type[Any], Effect],
        fail: Callable[[BaseException], None],
        read: Callable[[Body], Any],
        evaluate: Callable[[Evaluate, list[memoryview]], None] | None = None,
        on_policy: Callable[[list[memoryview]], None] = lambda bodies: None,
        signatures: Signatures | None = None,
    ) -> None:
        self.me = me
        self.store = store
        self.metrics = metrics
        self.links: Links | None = None
        self.requests: Requests | None = None
        self._effects = dict(effects)  # of each kind of action but Send and Release
        self._fail = fail  # called with the error that ends the driving
        self._read = read  # returns the bytes of a slice of a gradient
        self._evaluate = evaluate  # called with an Evaluate and its bodies
        self._on_policy = on_policy  # called with the bodies of a PolicyChanged
        self._signatures = signatures  # None: nothing is signed, and nothing checked
        self._machine: Machine | None = None
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False
        # The last message sent, with its header: a step is opened to thousands of peers, to each of a stage alike.
        self._encoded: tuple[Message, bytes] | None = None

    def connect(self, links: Links, requests: Requests) -> None:
        """Set the links and requests that actions use."""
        self.links, self.requests = links, requests

    def add_effects(self, effects: Mapping[type[Any], Effect]) -> None:
        """Add effects that need the run."""
        self._effects.update(effects)

    def run(self, machine: Machine, actions: list[Action]) -> None:
        """Drive this machine from now on, beginning with the actions of its start."""
        self._machine = machine
        self.perform(actions)
        self.post(Tick())

    def halt(self) -> None:
        """Stop driving."""
        self._machine = None
        self._events.clear()
        if self._timer is not None:
            self._timer.cancel()

    def post(self, event: Event) -> None:
        """Handle an event. Events that its actions cause at once are handled after it."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events and self._machine is not None:
                self._handle(self._machine, self._events.popleft())
        except Exception as error:  # from a full disk to a bug: no event may follow half an action
            self.halt()
            self._fail(error)
        finally:
            self._busy = False
        self._arm()

    def _handle(self, machine: Machine, event: Event) -> None:
        now = self._loop.time()
        try:
            actions = machine.handle(event, now)
        except BlamedError as error:
            actions = self._mishandled(machine, error.process, error.message, error.__cause__ or error)
        except Exception as error:
            if not isinstance(event, Received) or event.sender == self.me:
                raise
            actions = self._mishandled(machine, event.sender, type(event.message).__name__, error)
        self.perform(actions)

    def _mishandled(self, machine: Machine, sender: ProcessId, name: str, error: BaseException) -> list[Action]:
        log.error("a %s of %s raised; that process is put out, and this one goes on", name, sender, exc_info=error)
        self.metrics.decisions.at(f"messages_raised:{name}").inc()
        reason = f"sent {name}, which could not be handled ({type(error).__name__})"
        return machine.handle(Mishandled(sender, reason), self._loop.time())

    def receive(self, sender: ProcessId, header: bytes, bodies: list[memoryview], role: Role | None) -> None:
        """Handle a frame. Raises FrameError when it is no message, which closes its stream.

        role: by the sender's certificate; None: it has none.
        """
        message = decode_header(header)
        match message:
            case Request():
                if self.requests is not None:
                    self.requests.on_request(sender, message, role)
            case Response():
                if self.requests is not None:
                    self.requests.on_response(sender, message, bodies, role)
            case Evaluate():
                if self._evaluate is not None:
                    self._evaluate(message, bodies)
            case PolicyChanged():
                self._on_policy(bodies)
            case _:
                if self._machine is not None:
                    self.post(self._received(self._machine, sender, message, bodies, role))

    def lost(self, process: ProcessId, reason: str) -> None:
        """Handle a broken connection."""
        if self.requests is not None:
            self.requests.on_process_lost(process, reason)
        if self._machine is not None:  # one that begins later sends to whom it needs, and learns of it then
            self.post(Lost(process, reason))

    def perform(self, actions: list[Action]) -> None:
        """Perform the actions of a machine."""
        for action in actions:
            match action:
                case Send():
                    self._send(action)
                case Release():
                    self.store.release(action.refs)
                case _:
                    self._effects[type(action)](action)

    def _send(self, action: Send) -> None:
        if action.to == self.me:
            refs = tuple(body for body in action.bodies if isinstance(body, Ref))
            self._events.append(Received(self.me, action.message, refs))
            return
        if self.links is None or action.to.name == self.me.name:
            return  # an earlier life of this very process gets no message
        bodies: list[Buffer] = []
        for body in action.bodies:
            match body:
                case Ref():
                    bodies.append(self.store.get(body))
                case Padding():
                    bodies.append(memoryview(bytes(body.size_bytes)))
                case _:
                    bodies.append(self._read(body))
        tensors: LaneName = "sums" if type(action.message) in YIELDING else "bulk"
        header = self._header(action.message, action.to, bodies)
        self.links.send(action.to, header, bodies, lane=tensors if bodies else "control")

    def _header(self, message: Message, to: ProcessId, bodies: Bodies) -> bytes:
        signatures = self._signatures
        if signatures is not None and (signed := signatures.signed(message, to, bodies)) is not message:
            return encode_header(signed)  # for this receiver alone
        if self._encoded is None or self._encoded[0] is not message:
            proven = message if signatures is None else signatures.with_proofs(message)
            self._encoded = (message, encode_header(proven))
        return self._encoded[1]

    def _received(
        self, machine: Machine, sender: ProcessId, message: Message, bodies: Bodies, role: Role | None
    ) -> Received:
        """Return the event of a message, without what it says and cannot prove."""
        refs = tuple(self.store.add(body) for body in bodies)
        if self._signatures is None:
            return Received(sender, message, refs, role)
        checked = self._signatures.checked(message, sender, self.me, bodies, machine.checks)
        if checked is None:
            return Received(sender, message, refs, role, signed=False)
        proven = self._signatures.proven(checked, machine.checks)
        if proven is None:
            return Received(sender, message, refs, role, signed=False)
        if proven is not checked and proven != checked:
            name = type(message).__name__
            self.metrics.decisions.at(f"claims_unproven:{name}").inc()
            log.info("left out of a %s of %s: what it says of the run's state, no trainer has signed", name, sender)
        return Received(sender, proven, refs, role)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._machine is not None:
            self._timer = self._loop.call_at(self._machine.next_deadline(), self.post, Tick())
