"""A peer's process: finds the run, serves a stage in it, joins again when it has to, and leaves when it is told."""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from peers.loading import StageLoader
from swarmflow import __version__
from swarmflow.compute.device import choose_device, measure_speed
from swarmflow.core.actions import Exit, LoadState, Rejoin
from swarmflow.core.events import DrainAsked
from swarmflow.core.messages import Join
from swarmflow.core.peer import PeerMachine, PeerSettings
from swarmflow.core.types import Body, Member, Plan, Slice
from swarmflow.errors import ConfigError, IncompatibleError, NetworkError
from swarmflow.manifest import Manifest
from swarmflow.runtime.evaluation import EvaluationService
from swarmflow.runtime.finding import Found, find_leader, read_invite
from swarmflow.runtime.invite import Invite
from swarmflow.runtime.logs import set_up_logging
from swarmflow.runtime.metrics import Metrics
from swarmflow.runtime.node import Node
from swarmflow.runtime.session import Session, state_folder
from swarmflow.runtime.stage_host import StageHost
from swarmflow.runtime.worker import Worker

log = logging.getLogger("swarmflow")


@dataclass(frozen=True)
class Options:
    """The command line of a peer."""

    invite: str | None
    stage: int
    device: str
    capacity: int | None
    metrics_port: int | None
    metrics_host: str
    state_dir: Path | None
    listen: str
    announce: tuple[str, ...]
    drain_seconds: float
    stay: bool

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Options:
        """From click's values. Raises ConfigError."""
        stage = values["stage"]
        if stage != "auto" and not stage.isdigit():
            raise ConfigError(f"--stage {stage}: must be auto or the number of a stage, from 0")
        folder = values["state_dir"]
        return cls(**{
            **values, "stage": -1 if stage == "auto" else int(stage), "state_dir": Path(folder) if folder else None,
        })  # fmt: skip


def main(values: dict[str, Any]) -> int:
    """Run a peer; the exit code."""
    options = Options.parse(values)
    set_up_logging()
    invite = read_invite(options.invite)
    choose_device(options.device)
    with tempfile.TemporaryDirectory(prefix="swarmflow-peer-") as scratch:
        folder = state_folder(options.state_dir or Path(scratch))
        code: int = uvloop.run(_run(options, invite, folder))
        return code


async def _run(options: Options, invite: Invite, folder: Path) -> int:
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        stack.callback(metrics.close)
        if options.metrics_port is not None:
            port = metrics.serve(options.metrics_port, options.metrics_host)
            log.info("metrics: http://%s:%d/metrics", options.metrics_host, port)
        node = await Node.start(
            identity_path=folder / "identity.key", listen=[options.listen], announce=list(options.announce),
            bootstrap=list(invite.trainers),
        )  # fmt: skip
        stack.push_async_callback(node.stop)
        metrics.describe_process("peer", node.name, invite.run_id)
        stop = _Signals()
        log.info("peer %s of run %s (%s)", node.name[-6:], invite.name, invite.run_id)
        while True:
            outcome = await _one_life(options, invite, node, metrics, stop)
            if isinstance(outcome, Exit):
                log.info("%s", outcome.reason)
                if not outcome.ok:
                    raise IncompatibleError(outcome.reason)
                return 0
            log.warning("joining again: %s", outcome.reason)


async def _one_life(options: Options, invite: Invite, node: Node, metrics: Metrics, stop: _Signals) -> Exit | Rejoin:
    """One incarnation: from joining until it leaves or has to join again."""
    session = Session(node, invite.run_id, metrics)
    life = _Life(session, options)
    session.open({Exit: session.end, Rejoin: session.end}, life.read, life.evaluate)
    await session.links.start()
    try:
        finding = asyncio.ensure_future(find_leader(session, invite))
        stop.on_first = lambda: finding.cancel()
        stop.on_second = lambda: session.end(Exit("left at once"))
        try:
            found = await finding
        except asyncio.CancelledError:
            return Exit("left before it had joined")
        life.begin(found)
        stop.on_first = lambda: session.driver.post(DrainAsked())
        if stop.count:
            session.driver.post(DrainAsked())
        outcome: Exit | Rejoin = await session.ended
        return outcome
    finally:
        life.close()
        await session.close()


class _Life:
    """The parts of one incarnation that compute."""

    def __init__(self, session: Session, options: Options) -> None:
        self._session = session
        self._options = options
        self._host: StageHost | None = None
        self._evaluation: EvaluationService | None = None
        self._workers: list[Worker] = []

    def begin(self, found: Found) -> None:
        """The run is known: make the workers and the machine, and join."""
        session, options, manifest = self._session, self._options, found.manifest
        compute, codec = Worker("compute", session.fail), Worker("codec", session.fail)
        self._workers = [compute, codec]
        self._host = StageHost(manifest, session.driver, compute, codec)
        device = choose_device(options.device)
        loader = StageLoader(manifest, session, self._host, compute, device, options.capacity)
        self._evaluation = EvaluationService(session, self._host)
        session.driver.add_effects({**self._host.effects(), LoadState: loader.load})
        loader.serve()
        member = Member(session.me, options.stage, options.capacity or 1, tuple(session.node.addresses()))
        join = Join("peer", __version__, manifest.fingerprint, member, measure_speed(device))
        plan = Plan(manifest.stages, manifest.microbatches, manifest.tied, manifest.costs)
        machine = PeerMachine(session.me, found.leader, plan, PeerSettings(join, options.drain_seconds, stay=options.stay))
        session.announce(lambda: f"stage-{machine.stage}", lambda: {"phase": machine.phase, "version": machine.version})
        session.spawn(_measure(machine, session.metrics, session), "the metrics")
        session.driver.run(machine, [])

    def read(self, body: Body) -> Any:
        """A slice of a gradient, for the driver."""
        if self._host is None or not isinstance(body, Slice):
            raise NetworkError("a gradient was asked for before a stage was loaded")
        return self._host.read(body)

    def evaluate(self, message: Any, bodies: list[memoryview]) -> None:
        """A forward-only microbatch."""
        if self._evaluation is not None:
            self._evaluation.handle(message, bodies)

    def close(self) -> None:
        """End the threads."""
        for worker in self._workers:
            worker.stop()


class _Signals:
    """The first Ctrl-C or SIGTERM drains, the second leaves at once."""

    def __init__(self) -> None:
        self.count = 0
        self.on_first: Any = lambda: None
        self.on_second: Any = lambda: None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        self.count += 1
        (self.on_first if self.count == 1 else self.on_second)()


async def _measure(machine: PeerMachine, metrics: Metrics, session: Session) -> None:
    """Keep the gauges up to date."""
    while True:
        metrics.version.set(max(machine.version, 0))
        metrics.step.set(max(machine.epoch.step, 0))
        for stage, members in enumerate(machine.roster.stages):
            metrics.peers.at(stage).set(len(members))
        if machine.hops is not None:
            metrics.queue_length.set(machine.hops.queued)
            metrics.held_microbatches.set(machine.hops.held)
            metrics.capacity_microbatches.set(machine.hops.capacity)
            metrics.journal_bytes.set(machine.hops.journal_bytes)
        await asyncio.sleep(1.0)
