"""One life of a process in a world in virtual time, and its ends of connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.pipeline.admission import slots_max
from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.network import NetworkPath

if TYPE_CHECKING:
    from swarmflow.simulator.device import Device

WAKES_MAX = 100_000  # at one moment; a flow node solves its part in thousands of turns (Negotiation.tick)


@dataclass(slots=True)
class Link:
    """One end of a connection."""

    path: NetworkPath
    there: Host | None = None  # the host of the other end, as long as that end is there too


@dataclass(slots=True)
class Host:
    """One life of a process: its machine, its device, its clock and its connections."""

    process: ProcessId
    machine: PeerMachine | TrainerMachine
    device: Device
    began_s: float
    wish: int = -1  # the stage that a peer asks for, -1: any
    alive: bool = field(init=False, default=True)
    wake_s: float = field(init=False, default=float("inf"))  # when its machine is due, at the latest
    woken_s: float = field(init=False, default=-1.0)  # when its machine was due last
    wakes: int = field(init=False, default=0)  # how often before at that very moment
    frozen_until_s: float = field(init=False, default=0.0)  # until then it handles no event
    skew_s: float = field(init=False, default=0.0)  # how far its clock is ahead
    stored: dict[int, object] = field(init=False, default_factory=dict)  # bodies, by the key of their Ref
    links: dict[ProcessId, Link] = field(init=False, default_factory=dict)  # by the process at the other end
    died_s: float = field(init=False, default=float("inf"))
    sent_bytes: int = field(init=False, default=0)  # of messages with their tensors, not of the states that it gives
    received_bytes: int = field(init=False, default=0)  # the same

    def wake(self, now_s: float) -> None:
        """Note that the machine is due now. Raises InvariantViolated where it is due without end at one moment."""
        self.wakes = self.wakes + 1 if self.woken_s == now_s else 0
        self.wake_s, self.woken_s = float("inf"), now_s
        if self.wakes > WAKES_MAX:
            raise InvariantViolated(f"{self.process} is due again and again at {now_s} s, and nothing follows")

    def check_memory(self) -> None:
        """Raise InvariantViolated where a peer holds more microbatches than it has memory for."""
        hops = self.machine.hops if isinstance(self.machine, PeerMachine) else None
        if hops is None:
            return
        graphs, held, capacity = len(hops.admission.held), hops.admission.unfinished, self.device.loading.capacity
        if graphs > capacity or held > slots_max(hops.admission):
            what = f"{held} microbatches, {graphs} of them with graphs"
            raise InvariantViolated(f"{self.process} holds {what}, and its capacity is {capacity}")
