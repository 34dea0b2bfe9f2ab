"""What an attacker with a place in the swarm can do: see and change all that its process sends and receives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.pipeline.hop import Hop
from swarmflow.core.protocol.actions import Send
from swarmflow.core.protocol.events import Event
from swarmflow.core.protocol.messages import HopHandover, Message
from swarmflow.core.protocol.types import Epoch, ProcessId, Roster
from swarmflow.runtime.execution.signatures import Signatures
from swarmflow.runtime.transport.lanes import Body, Buffer
from swarmflow.runtime.transport.links import Links
from swarmflow.runtime.transport.wire import Request, Wire, encode_header

Outgoing = tuple[Wire, Sequence[Body]]


class Insider:
    """The attacker's own process: an ordinary peer, its links, and a count of what was forged."""

    def __init__(self, machine: PeerMachine, links: Links, signatures: Signatures) -> None:
        self.machine = machine
        self._signatures = signatures
        self.sent: Counter[str] = Counter()  # by name of the message
        self._links = links

    @property
    def me(self) -> ProcessId:
        """Its own name."""
        return self.machine.me

    @property
    def leader(self) -> ProcessId:
        """The leader that it follows."""
        return self.machine.leader

    @property
    def stage(self) -> int:
        """The stage that it serves; -1: none."""
        return self.machine.stage

    @property
    def epoch(self) -> Epoch:
        """The step that it takes part in."""
        return self.machine.epoch

    @property
    def roster(self) -> Roster:
        """The living members around it; none outside of a step."""
        view = self.machine.epoch_view
        return view.alive() if view is not None else Roster()

    def peers(self, stage: int) -> list[ProcessId]:
        """Return the other peers of a stage, as far as it knows them."""
        rows = self.roster.ids_by_stage[:-1]
        return [process for process in rows[stage] if process != self.me] if 0 <= stage < len(rows) else []

    def others(self) -> list[ProcessId]:
        """Return all other peers that it knows."""
        return sorted(process for process in self.roster.peer_ids if process != self.me)

    def not_held(self) -> list[int]:
        """Return the microbatches of the step that are not its own."""
        own = {hop.microbatch.index for hop in self.own_hops()}
        return [index for index in range(self.machine.plan.microbatches) if index not in own]

    def own_hops(self) -> list[Hop]:
        """Return the hops of the step that were given to it."""
        hops = self.machine.hops
        every = hops.hops.values() if hops is not None else ()
        return [hop for hop in every if hop.microbatch.epoch == self.epoch and hop.handovers]

    def handovers(self) -> tuple[HopHandover, ...]:
        """Return how some hop of the step has come to it; empty: it has none."""
        return next((hop.handovers for hop in self.own_hops()), ())

    def send(self, to: ProcessId, message: Message, bodies: Sequence[Buffer] = ()) -> None:
        """Send a forged message, with its own signature where it needs one.

        It is counted where its own machine counts: else a heartbeat would give it away.
        """
        self.sent[type(message).__name__] += 1
        if not bodies:
            self.machine.counter.sent([Send(to, message)])
        header = encode_header(self._signatures.signed(message, to, bodies))
        self._links.send(to, header, bodies, lane="bulk" if bodies else "control")


class Lie:
    """One kind of lie; by itself it tells none."""

    every_s = 0.05  # from one strike to the next

    def __init__(self, insider: Insider) -> None:
        self.insider = insider

    def strike(self) -> None:
        """Send what is due; called each `every_s`."""

    def outgoing(self, to: ProcessId, message: Wire, bodies: Sequence[Body]) -> Outgoing:
        """Return what is sent in place of a message of its own machine."""
        return message, bodies

    def incoming(self, event: Event) -> Event:
        """Return what its own machine is told in place of an event."""
        return event

    def on_request(self, sender: ProcessId, request: Request) -> None:
        """See a request of another process, which its own process answers."""

    def altered(self, message: Wire) -> None:
        """Count a message of its own machine that was changed."""
        self.insider.sent[f"{type(message).__name__} altered"] += 1


def made(body: Body) -> Buffer:
    """Return the bytes of a body that may be made when it is sent."""
    return body if isinstance(body, Buffer) else body()
