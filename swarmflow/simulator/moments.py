"""Moments of a swarm at which faults are aimed: phases of a step, of an election and of joining."""

from __future__ import annotations

from collections.abc import Callable

from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.world import World

Pick = Callable[[World], list[ProcessId]]
Apart = Callable[[World], set[str]]
STEP_PHASES = ("working", "complete", "preparing", "prepared", "committing", "")  # the last one: between two steps
ELECTION_PHASES = ("doubted", "standing", "followed", "taken over")
JOINING_PHASES = ("joining", "loading", "ready")


def leader_phase(world: World) -> str:
    """Return the phase of the leader's step, or an empty text between two steps."""
    host = world.hosts[world.leader] if world.leader is not None else None
    machine = host.machine if host is not None else None
    if not isinstance(machine, TrainerMachine) or machine.lead is None or machine.lead.step is None:
        return ""
    return machine.lead.step.phase


def stage_of(world: World, process: ProcessId) -> int:
    """Return the stage that a peer serves, -1: none yet."""
    weights = world.hosts[process].device.weights
    return -1 if weights is None else weights.stage


def peers_of(world: World, stage: int) -> list[ProcessId]:
    """Return the peers that are alive and hold a stage."""
    return [process for process in world.alive_peers() if stage_of(world, process) == stage]


def in_election(world: World, phase: str) -> bool:
    """Return whether a process doubts its leader, or a trainer is a candidate, or other processes answer it."""
    if phase == "doubted":
        machines = [host.machine for host in world.hosts.values() if host.alive]
        return any(machine.lease.lost_s is not None for machine in machines)
    candidacies = [machine.candidacy for process, machine in world.trainers.items() if world.hosts[process].alive]
    followers = [len(candidacy.reports) - 1 for candidacy in candidacies if candidacy is not None]
    return any((count > 0) == (phase == "followed") for count in followers)


def in_joining(world: World, phase: str) -> bool:
    """Return whether a peer that is no member yet is in this phase."""
    machines = [host.machine for host in world.hosts.values() if host.alive]
    return any(isinstance(machine, PeerMachine) and machine.phase == phase for machine in machines)


def in_phase(world: World, phase: str) -> Callable[[], bool]:
    """Return a function that tells whether a phase is in progress. `taken over`: a takeover since this call."""
    if phase == "taken over":
        before = world.counts["successions"]
        return lambda: world.counts["successions"] > before
    if phase in ELECTION_PHASES:
        return lambda: in_election(world, phase)
    if phase in JOINING_PHASES:
        return lambda: in_joining(world, phase)
    if phase not in STEP_PHASES:
        raise ValueError(f"no phase {phase!r}; there are {(*STEP_PHASES, *ELECTION_PHASES, *JOINING_PHASES)}")
    return lambda: leader_phase(world) == phase


def at_phase(
    world: World,
    phase: str,
    strike: Callable[[], object],
    since_s: float,
    delay_s: float = 0.0,
    until_s: float = float("inf"),
) -> None:
    """Call `strike` once, delay_s after a phase begins for the first time from since_s to until_s."""
    began = False
    present = in_phase(world, phase)

    def look() -> bool:
        nonlocal began
        if world.ended or world.clock.now_s > until_s:
            return True
        now = present()
        before, began = began, began or not now
        if before and now:
            world.clock.after(delay_s, strike)
        return before and now

    world.clock.after(max(0.0, since_s - world.clock.now_s), lambda: world.clock.watch(look))


def kill_in_phase(
    world: World, phase: str, pick: Pick, since_s: float, delay_s: float = 0.0, until_s: float = float("inf")
) -> None:
    """Kill the picked processes delay_s after a phase begins for the first time from since_s to until_s."""

    def strike() -> None:
        for victim in pick(world):
            world.kill(victim)

    at_phase(world, phase, strike, since_s, delay_s, until_s)


def split_in_phase(
    world: World,
    phase: str,
    apart: Apart,
    seconds: float,
    symmetric: bool = True,
    notified: bool = True,
    since_s: float = 0.0,
    delay_s: float = 0.0,
    until_s: float = float("inf"),
) -> None:
    """Split the network (Transport.split) delay_s after a phase begins for the first time from since_s to until_s.

    apart: returns the names of one side at that moment; without any nothing happens.
    """

    def strike() -> None:
        if not world.ended and (names := apart(world)):
            world.transport.split(names, seconds, symmetric, notified)
            world.counts["aimed_splits"] += 1

    at_phase(world, phase, strike, since_s, delay_s, until_s)
