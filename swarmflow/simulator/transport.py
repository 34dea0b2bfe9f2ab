"""The messages and connections of a world in virtual time: sent, in flight, delivered or lost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from swarmflow.core.protocol.actions import Send
from swarmflow.core.protocol.events import Lost, Received
from swarmflow.core.protocol.handovers import CHECKED, SIGNED, checked, signed
from swarmflow.core.protocol.messages import (
    FROM_TRAINERS,
    YIELDING,
    Backward,
    Drain,
    Forward,
    Message,
    RelayedTensor,
    RelayTensor,
    hop,
    step,
)
from swarmflow.core.protocol.proofs import with_proofs, without_unproven
from swarmflow.core.protocol.types import Body, Padding, ProcessId, Slice
from swarmflow.simulator.causes import LINKS, REDUCE, TIMER
from swarmflow.simulator.host import Host, Link
from swarmflow.simulator.network import Flight
from swarmflow.simulator.partitions import Partition, Partitions
from swarmflow.simulator.proofs import is_proven, is_signed_by, sign, sign_as
from swarmflow.simulator.sizes import wire_bytes

if TYPE_CHECKING:
    from swarmflow.simulator.lying import Liars
    from swarmflow.simulator.world import World

Bodies = tuple[tuple[object, int], ...]  # (value, bytes) of each
NOTHING: Bodies = ()
# What an event waits for, by its message: the links (hops) or the end of the step; for other messages, a timer.
_WHY = {
    kind: why
    for module, why in ((hop, LINKS), (step, REDUCE))
    for kind in vars(module).values()
    if isinstance(kind, type) and kind.__module__ == module.__name__
}
DIAL_S = 10.0  # after which a connection attempt without an answer is given up


@dataclass(slots=True)
class Transport:
    """Carries the messages of a world's processes, and breaks their connections."""

    world: World
    partitions: Partitions = field(init=False, default_factory=Partitions)
    # (sender, receiver): until when messages are lost on a connection that stays
    mute_until_s: dict[tuple[ProcessId, ProcessId], float] = field(init=False, default_factory=dict)
    flips: set[tuple[ProcessId, ProcessId]] = field(init=False, default_factory=set)  # their next message is corrupt
    liars: Liars | None = field(init=False, default=None)  # they send other messages than their machines do
    # The last message of a trainer, and the same with proofs: a step is opened to thousands.
    _proven: tuple[Message, Message] = field(init=False, default=(Drain(), Drain()))

    def reaches(self, one: str, other: str) -> bool:
        """Return whether processes of these names reach each other, in both directions."""
        return self.partitions.reach(one, other)

    def send(self, here: Host, action: Send) -> None:
        """Send a message of a process' machine."""
        if self.liars is None:
            self.carry(here, action)
        else:
            self.liars.send(here, action)

    def carry(self, here: Host, action: Send) -> None:
        """Carry a message of a process, with its signatures."""
        message = action.message
        if here.process in self.world.trainers:
            if self._proven[0] is not message:
                self._proven = message, with_proofs(message, sign)
            message = self._proven[1]
        if type(message) in SIGNED:
            message = signed(message, action.to, partial(sign_as, here.process), lambda: _digest(_bodies(here, action)))
        if message is not action.message:
            action = replace(action, message=message)
        world, receiver = self.world, action.to
        now_s, sender = world.clock.now_s, here.process
        size_bytes, bodies = wire_bytes(message), NOTHING
        if action.bodies:
            bodies = _bodies(here, action)
            size_bytes += sum(body_bytes for _, body_bytes in bodies)
        link = here.links.get(receiver)
        if link is None and receiver.name == sender.name:
            world.clock.at(now_s, partial(self._deliver, here, world.hosts.get(receiver), action, bodies))
            return
        kind = type(message).__name__
        world.meter.messages[kind] += 1
        world.meter.wire_bytes[kind] += size_bytes
        here.sent_bytes += size_bytes
        if world.trace is not None:
            world.write_trace(sender, f"sends {kind} of {size_bytes} bytes to {receiver.name}.{receiver.incarnation}")
        if link is None or link.there is None:
            link = self._connect(here, receiver)
        flight = link.path.send(size_bytes, bool(bodies), now_s, yields=type(message) in YIELDING)
        why = _WHY.get(type(message), TIMER)
        world.clock.at(flight.due_s, partial(self._arrive, here, link.there, action, bodies, flight, now_s), why)

    def forget(self, here: Host, process: ProcessId) -> None:
        """Close a process' end of a connection; the other end is still to break."""
        link = here.links.pop(process, None)
        if link is not None and link.there is not None:
            link.there.links[here.process].there = None

    def lose(self, process: ProcessId, lost: ProcessId) -> None:
        """Break a process' connection to another one, at its end."""
        self.world.deliver(process, Lost(lost, "the connection broke"))

    def cut(self, one: ProcessId, other: ProcessId) -> None:
        """Break the connection of two processes at both ends; it can be made anew at once."""
        self.lose(one, other)
        self.lose(other, one)

    def break_connections(self, dead: Host) -> None:
        """Break the connections to a process that has died, each some time later."""
        world = self.world
        for other in list(dead.links):
            seconds = world.hardware.broken_s()
            if seconds is not None and world.hosts[other].alive:
                world.clock.after(seconds, partial(self.lose, other, dead.process))

    def mute(self, sender: ProcessId, receiver: ProcessId, seconds: float) -> None:
        """Lose the messages from one process to another for a while, silently."""
        self.mute_until_s[sender, receiver] = self.world.clock.now_s + seconds

    def split(self, apart: set[str], seconds: float, symmetric: bool = True, notified: bool = True) -> Partition:
        """Part the processes of these names from all others for a while.

        symmetric: in both directions; else messages still get to the processes apart. notified: connections break; else
        messages are lost silently.
        """
        world, partition = self.world, Partition(frozenset(apart), symmetric, notified)
        self.partitions.present.append(partition)
        for process in sorted(world.hosts) if notified else ():
            for other in sorted(world.hosts):
                if world.hosts[process].alive and partition.blocks(process.name, other.name):
                    world.clock.after(world.hardware.broken_s() or DIAL_S, partial(self.lose, process, other))
        world.clock.after(seconds, partial(self.partitions.heal, partition))
        return partition

    def _connect(self, here: Host, receiver: ProcessId) -> Link:
        """Make both ends of a connection. A dead receiver has no end that could break."""
        network, sender, there = self.world.network, here.process, self.world.hosts.get(receiver)
        link = Link(network.path(sender, receiver), there)
        if there is not None and there.alive:
            here.links[receiver] = link
            there.links[sender] = Link(network.path(receiver, sender), here)
        return link

    def _arrive(
        self, here: Host, there: Host | None, action: Send, bodies: Bodies, flight: Flight, sent_s: float
    ) -> None:
        clock = self.world.clock
        now_s = clock.now_s
        if flight.uplink_s is not None and (flight := flight.delayed(now_s)).due_s > now_s:
            why = _WHY.get(type(action.message), TIMER)
            clock.at(flight.due_s, partial(self._arrive, here, there, action, bodies, flight, sent_s), why)
            return
        received_s = flight.path.received_s(flight, now_s)
        if there is not None:
            there.received_bytes += flight.size_bytes
        if bodies and isinstance(action.message, Forward | Backward | RelayTensor | RelayedTensor):
            self.world.meter.transit_s += received_s - sent_s
        if received_s > now_s:
            why = _WHY.get(type(action.message), TIMER)
            clock.follow(received_s, partial(self._deliver, here, there, action, bodies), why)
        else:
            self._deliver(here, there, action, bodies)

    def _deliver(self, here: Host, there: Host | None, action: Send, bodies: Bodies) -> None:
        world, sender, receiver = self.world, here.process, action.to
        if not here.alive and there is not None and self._replaced(here, there):
            return
        if self.mute_until_s and self.mute_until_s.get((sender, receiver), 0.0) > world.clock.now_s:
            self.partitions.drop(sender.name, receiver.name, world.clock.now_s)
            return
        if self.flips and (sender, receiver) in self.flips:  # frames have a checksum: the stream is broken
            self.flips.discard((sender, receiver))
            self.cut(sender, receiver)
            return
        across = self.partitions.between(sender.name, receiver.name) if self.partitions.present else None
        if across is not None:
            self.partitions.drop(sender.name, receiver.name, world.clock.now_s)
            if not across.notified:
                return
        if there is not None and there.alive and across is None:
            refs = tuple(world.store(receiver, value, size_bytes) for value, size_bytes in bodies) if bodies else ()
            found: Message | None = action.message
            if type(found) in CHECKED:
                digest = partial(_digest, bodies)
                found = checked(action.message, sender, receiver, is_signed_by, digest, there.machine.checks)
            if found is not None and type(found) not in FROM_TRAINERS:
                found = without_unproven(found, is_proven, there.machine.checks)
            message = action.message if found is None else found
            world.handle(there, Received(sender, message, refs, world.role(sender), found is not None))
        elif here.alive:
            world.clock.after(world.hardware.broken_s() or DIAL_S, partial(self.lose, sender, receiver))

    def _replaced(self, here: Host, there: Host) -> bool:
        """Return whether the next life of a dead sender is connected: the dead one's messages are dropped then."""
        latest = self.world.launcher.latest[here.process.name]
        return latest != here.process and latest in there.links


def _read(here: Host, body: Body) -> tuple[object, int]:
    if isinstance(body, Slice):
        return here.device.sums.read(body), here.device.sums.piece_bytes(body.stop - body.start)
    return (None if isinstance(body, Padding) else here.stored[body.key]), body.size_bytes


def _bodies(here: Host, action: Send) -> Bodies:
    return tuple(_read(here, body) for body in action.bodies)


def _digest(bodies: Bodies) -> bytes:
    return repr([value for value, _ in bodies]).encode()  # of tensors that are relayed
