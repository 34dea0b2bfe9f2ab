"""What a person or a machine does to one process of a world: signals, jumps of the clock, work that is never done."""

from __future__ import annotations

import math

from swarmflow.core.protocol.events import SaveAsked, Tick
from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.world import World


def freeze(world: World, process: ProcessId, seconds: float) -> None:
    """Stop a process for a while, as SIGSTOP and SIGCONT do: it handles the events of that time when it wakes."""
    host = world.hosts[process]
    host.frozen_until_s = max(host.frozen_until_s, world.clock.now_s + seconds)


def jump(world: World, process: ProcessId, seconds: float) -> None:
    """Have the clock of a process jump forward."""
    world.hosts[process].skew_s += seconds
    world.deliver(process, Tick())


def suspend(world: World, process: ProcessId, seconds: float) -> None:
    """Suspend the machine of a process for a while, and its clock with it."""
    host, now_s = world.hosts[process], world.clock.now_s
    host.skew_s -= max(0.0, now_s + seconds - max(now_s, host.frozen_until_s))
    freeze(world, process, seconds)


def stall(world: World, process: ProcessId, kind: str, times: float = math.inf) -> None:
    """Have a process leave so many actions of one kind of work (see STALLS) undone, while it stays alive."""
    world.hosts[process].device.stalls.begin(kind, times)


def ask_save(world: World, number: int) -> None:
    """Ask the leader to write its version to disk; the answer is in `World.saved` under this number."""
    if world.leader is not None:
        world.deliver(world.leader, SaveAsked(number))
