"""The examination: every check in order, each shown as soon as it is made."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import uvloop

from swarmflow.doctor.diagnosis import Diagnosis, Level, as_json, ok
from swarmflow.doctor.machine import (
    check_daemon,
    check_device,
    check_disk,
    check_memory,
    check_port,
    check_python,
    check_torch,
)
from swarmflow.doctor.swarm import REACH_S, check_as_a_peer, check_invite, check_trainer
from swarmflow.errors import ConfigError, NetworkError
from swarmflow.peer_memory import PROCESS_BYTES, journal_bytes
from swarmflow.runtime.transport.invite import Invite
from swarmflow.system import available_memory_bytes

ANY_PORT = "0.0.0.0:0"


@dataclass(frozen=True)
class Checkup:
    """What is examined: the options of a peer. clock: the time of this machine, since 1970."""

    invite: Invite | None = None
    device: str = "auto"
    listen: str = ANY_PORT
    announce: tuple[str, ...] = ()
    state_dir: Path = Path()
    memory_limit_bytes: int | None = None
    reach_s: float = REACH_S
    clock: Callable[[], float] = time.time

    @property
    def host_bytes_max(self) -> int:
        """The RAM that the state of a stage may take beside a GPU; 0: there is none."""
        from swarmflow.compute.device import choose_device

        with suppress(ConfigError):
            if choose_device(self.device).type == "cuda":
                return available_memory_bytes()
        return 0

    @property
    def stage_bytes_max(self) -> int:
        """The memory that a stage may take: of the device, less what the process needs where that is a CPU.

        As a peer counts it under a limit, which would else refuse what is said to fit.
        """
        from swarmflow.compute.device import choose_device, free_memory_bytes

        with suppress(ConfigError):  # the device is not there, which is reported by itself
            device = choose_device(self.device)
            if device.type == "cuda":
                try:
                    free = free_memory_bytes(device)
                except RuntimeError:  # it fails, which is reported too
                    return 0
                return min(free, self.memory_limit_bytes or free)
        free = available_memory_bytes()
        kept = 0 if self.memory_limit_bytes is None else journal_bytes(self.memory_limit_bytes)
        return max(0, min(free, self.memory_limit_bytes or free) - PROCESS_BYTES - kept)


def main(examined: Checkup, *, json: bool = False) -> int:
    """Print what is found; return 1 if something fails, else 0. json: one object, once all is examined."""
    # What a check finds is its answer; the log of the network's parts would say the same once more.
    logging.getLogger("swarmflow").setLevel(logging.CRITICAL)
    code: int = uvloop.run(_run(examined, json))
    return code


async def _run(examined: Checkup, json: bool) -> int:
    diagnoses = []
    async for diagnosis in examine(examined):
        diagnoses.append(diagnosis)
        if not json:
            print(diagnosis.lines(), flush=True)
    if json:
        print(as_json(diagnoses))
    return int(any(diagnosis.level is Level.FAIL for diagnosis in diagnoses))


async def examine(examined: Checkup) -> AsyncIterator[Diagnosis]:
    """Yield the diagnosis of each check. Checks that need what has failed are left out."""
    yield check_python()
    torch = check_torch()
    yield torch
    if torch.level is not Level.FAIL:
        yield check_device(examined.device)
    yield check_memory(examined.memory_limit_bytes)
    yield check_disk(examined.state_dir)
    daemon = await check_daemon()
    yield daemon
    port = check_port(examined.listen) if daemon.level is Level.OK else None
    if port is not None:
        yield port
    if examined.invite is None:
        yield ok("swarm", "not examined", "give an invite to have the clock, the run, the link and the reach examined")
        return
    yield check_invite(examined.invite, examined.clock())
    if daemon.level is Level.FAIL:
        return
    async for diagnosis in _examine_swarm(examined, examined.invite, port, joins=torch.level is not Level.FAIL):
        yield diagnosis


async def _examine_swarm(
    examined: Checkup, invite: Invite, port: Diagnosis | None, *, joins: bool
) -> AsyncIterator[Diagnosis]:
    try:
        answers = await check_trainer(invite, examined.clock)
    except NetworkError as error:  # of the daemon: it started a moment ago
        answers = [Diagnosis("trainer", Level.FAIL, str(error), "try again; the network daemon has just failed")]
    for diagnosis in answers:
        yield diagnosis
    if answers[0].level is Level.FAIL or not joins:
        return
    listen = examined.listen if port is not None and port.level is Level.OK else ANY_PORT
    memory = examined.stage_bytes_max, examined.host_bytes_max
    async for diagnosis in check_as_a_peer(invite, listen, examined.announce, *memory, examined.reach_s):
        yield diagnosis
