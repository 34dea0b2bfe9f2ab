"""A peer's process: finds the run, serves a stage, joins again when it has to, and leaves on a signal."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from peers.building import check_trusted
from peers.copies import CopyKeeper
from peers.ending import Signals, run_lives
from peers.fitting import MemoryBudget
from peers.kept import BetweenLives
from peers.kept_base import KeptBase
from peers.left import LeftState
from peers.loading import StageLoader
from peers.memory import JoinedRun
from peers.options import PeerOptions
from peers.showing import show_peer
from peers.siblings import announce_to_siblings, siblings
from swarmflow import __version__
from swarmflow.activity import doing
from swarmflow.authority.access import AccessControl
from swarmflow.compute.device import choose_device, measure_speed
from swarmflow.compute.device_layer import layer_of
from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.protocol.actions import (
    DropCopies,
    Exit,
    ExpectRoot,
    KeepCopies,
    LoadState,
    Rejoin,
    Resume,
    StoreState,
    WriteStage,
)
from swarmflow.core.protocol.events import DrainAsked, Summarized
from swarmflow.core.protocol.messages import Held, Join
from swarmflow.core.protocol.types import Body, Holding, Member, ProcessId, Roster, Slice
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.evaluation import EvaluationService
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.execution.stage_host import StageHost
from swarmflow.runtime.execution.store import Buffer
from swarmflow.runtime.execution.summary import SUMMARY_EVERY_S, PeerReport
from swarmflow.runtime.execution.worker import Worker
from swarmflow.runtime.operations.ending import Threads
from swarmflow.runtime.operations.finding import FoundRun, find_leader
from swarmflow.runtime.operations.folders import state_folder
from swarmflow.runtime.operations.own_reach import watch_reach
from swarmflow.runtime.operations.reach import report_reach
from swarmflow.runtime.operations.showing import RunDisplay
from swarmflow.runtime.transport.invite import warn_of_expiry
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.upload_limit import UploadLimit
from swarmflow.runtime.transport.wire import Evaluate
from swarmflow.system import resident_bytes

if TYPE_CHECKING:
    from swarmflow.terminal.process_view import ProcessView

log = logging.getLogger("swarmflow")

FIRST_FIND_S = 20.0  # after that, a newcomer fails; a peer that has trained waits as long as it takes


@dataclass(frozen=True)
class OverLives:
    """What a peer measures of itself and may use, over all incarnations of its process."""

    access: AccessControl
    report: PeerReport
    budget: MemoryBudget
    upload: UploadLimit | None  # None: it sends as much as its links take

    @classmethod
    def of(cls, options: PeerOptions, memory: JoinedRun, metrics: Metrics, node: Node) -> OverLives:
        """Return those of a process that has just started."""

        def used_bytes() -> int:
            return resident_bytes() + resident_bytes(node.daemon_pid)

        limits = options.memory_limit, options.capacity, options.journal_bytes_max
        chosen = options.state, options.activations, options.compile
        budget = MemoryBudget(choose_device(options.device), *limits, used_bytes, *chosen)
        upload = UploadLimit(options.upload_limit) if options.upload_limit is not None else None
        access = AccessControl(options.invite.run_id, options.invite.peer)
        if (policy := memory.policy(options.invite.run_id)) is not None:
            access.adopt(policy)
        return cls(access, PeerReport(metrics, options.metrics_host), budget, upload)


def main(options: PeerOptions, view: ProcessView | None = None) -> int:
    """Run a peer, and return the exit code. view: on its terminal, if it has one."""
    with doing("looking at the device"):
        choose_device(options.device)
    with tempfile.TemporaryDirectory(prefix="swarmflow-peer-") as scratch:
        folder = state_folder(options.state_dir or Path(scratch))
        code: int = uvloop.run(_run(options, folder, view))
        return code


async def _run(options: PeerOptions, folder: Path, view: ProcessView | None) -> int:
    invite, memory = options.invite, JoinedRun(folder)
    first = not memory.joined(invite.run_id)
    Threads.of_this_loop().abandon()  # calls that have to finish are awaited, and to read a disk takes minutes
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        stack.callback(metrics.close)
        if options.metrics_port is not None:
            port = metrics.serve(options.metrics_port, options.metrics_host, options.metrics_token)
            log.info("metrics: http://%s:%d/metrics", options.metrics_host, port)
        node = await Node.start(
            identity_path=folder / "identity.key",
            listen=[options.listen],
            announce=list(options.announce),
            bootstrap=list(memory.completed(invite).trainers),
            patient=not first,
        )
        stack.push_async_callback(node.stop)
        announce_to_siblings(options.of_host, node.name)
        metrics.describe_process("peer", node.name, invite.run_id)
        copies = CopyKeeper(folder / "copies" / invite.run_id, bool(options.state_dir) and options.keep_copies)
        left = LeftState(folder / "left" / invite.run_id if options.state_dir else None)
        signals, between, shown = Signals(), BetweenLives(), RunDisplay(view)
        stack.callback(asyncio.get_running_loop().create_task(shown.keep_up()).cancel)
        if view is not None:
            view.name = node.name[-6:]
        own = OverLives.of(options, memory, metrics, node)
        own.budget.begin()
        log.info("peer %s of run %s (%s)", node.name[-6:], invite.name, invite.run_id)
        warn_of_expiry(invite.peer)

        async def life(first: bool) -> Exit | Rejoin:
            parts = memory, node, own, copies, left, between, signals
            return await one_life(options, *parts, first=first, shown=shown)

        try:
            await run_lives(life, signals, between, left, first=first)
        finally:
            if own.report.hop_tokens:  # it has joined
                log.info("%s", own.report.contribution())
        return 0


async def one_life(
    options: PeerOptions,
    memory: JoinedRun,
    node: Node,
    own: OverLives,
    copies: CopyKeeper,
    left: LeftState,
    between: BetweenLives,
    signals: Signals,
    *,
    first: bool,
    shown: RunDisplay | None = None,
) -> Exit | Rejoin:
    """One incarnation: from joining until it leaves or has to join again. After the first, it waits for a trainer."""
    session = Session(node, own.access, own.report.metrics, own.upload)
    session.on_policy = memory.keep_policy
    life = _Life(session, options, own, between, left, shown or RunDisplay(None))
    at_once = partial(session.end, Exit("left at once"))
    signals.handlers = (partial(session.end, Exit("left before it had joined")), at_once)
    session.open({Exit: session.end, Rejoin: session.end}, life.read, life.evaluate)
    outcome: Exit | Rejoin | None = None
    try:
        await session.links.start()
        finding = find_leader(session, memory.completed(options.invite), timeout_s=FIRST_FIND_S if first else None)
        found = await session.unless_ended(finding)
        if found is not None:
            memory.join(options.invite.run_id)
            await session.unless_ended(life.begin(found, memory, copies))
        if found is not None and not session.ended.done():
            session.spawn(report_reach(session, options.invite, found.leader), "trying what trainers announce")
            reaching = watch_reach(session, options.invite, found.leader, own.report.reached)
            session.spawn(reaching, "finding out how others reach this peer")
            asked = partial(session.driver.post, DrainAsked())
            signals.handlers = (asked, asked, at_once)
        outcome = await session.ended
        return outcome
    finally:
        try:
            await life.keep(outcome, over=isinstance(outcome, Exit) and outcome.ok and not signals.count)
        finally:
            life.close()
            await session.close()


class _Life:
    """The parts of one incarnation that compute."""

    def __init__(
        self,
        session: Session,
        options: PeerOptions,
        own: OverLives,
        between: BetweenLives,
        left: LeftState,
        shown: RunDisplay,
    ) -> None:
        self._session = session
        self._own = own
        self._shown = shown
        self._between = between
        self._left = left
        self._loader: StageLoader | None = None
        self._options = options
        self._host: StageHost | None = None
        self._evaluation: EvaluationService | None = None
        self._workers: list[Worker] = []

    async def begin(self, found: FoundRun, memory: JoinedRun, copies: CopyKeeper) -> None:
        """Begin in a known run: read the disk, make the workers and the machine, and join."""
        session, own, manifest = self._session, self._own, found.manifest
        check_trusted(manifest, self._options.trust_module)
        session.fit(manifest)
        compute, codec = Worker("compute", session.fail), Worker("codec", session.fail)
        self._workers = [compute, codec]
        self._host = StageHost(manifest, session.driver, compute, codec, layer_of(own.budget.device))
        own.report.hop_tokens = manifest.microbatch_sequences * manifest.seq_len
        kept = self._between.of(manifest.fingerprint)
        with doing("reading what the state folder holds of the run"):
            holdings = await copies.begin(session, manifest)
            held = kept.held if kept is not None else await asyncio.to_thread(self._left.find, manifest.fingerprint)
        measures = own.budget, own.report.loading
        loader = self._loader = StageLoader(
            manifest, session, self._host, compute, *measures, copies, self._left, self._between, self._options.stage
        )
        loader.frozen.disk = KeptBase(self._options.state_dir and self._options.state_dir / "frozen")
        self._evaluation = EvaluationService(session, self._host)
        session.driver.add_effects(
            {
                **self._host.effects(),
                LoadState: loader.load,
                ExpectRoot: loader.expect,
                Resume: loader.resume,
                StoreState: loader.store,
                WriteStage: loader.write,
                KeepCopies: copies.keep,
                DropCopies: copies.drop,
            }
        )
        with doing("measuring the speed of the device"):
            speed = await asyncio.to_thread(measure_speed, own.budget.device, manifest.precision)
        if 0 <= self._options.stage < manifest.stages:  # one that the run has not, the leader refuses in better words
            own.budget.check_stage(manifest, self._options.stage)
        unfit = own.budget.unfit(manifest)
        held = None if held is not None and held.stage in unfit else held
        machine = self._machine(found, copies.keeps, holdings, held, speed, unfit)
        loader.serve(machine.loaders_share, partial(_trainers, machine), partial(siblings, self._options.of_host))
        copies.hold = lambda: machine.holds_copies(asyncio.get_running_loop().time())
        session.announce(
            lambda: f"stage-{machine.stage}" if machine.stage >= 0 else None,
            lambda: {"phase": str(machine.phase), "version": machine.version, "load": machine.load},
        )
        session.spawn(_measure(machine, own.report, memory), "the metrics")
        session.spawn(_summarize(session, own.report), "the summary for those who watch")
        session.spawn(session.metrics.progress.follow(lambda: _progress(machine, compute)), "the progress")
        session.spawn(show_peer(self._shown, session, machine, own.report), "what is shown")
        session.driver.run(machine, [])

    def _machine(
        self,
        found: FoundRun,
        keeps: bool,
        holdings: tuple[Holding, ...],
        held: Held | None,
        speed: float,
        unfit: tuple[int, ...],
    ) -> PeerMachine:
        """Return the machine of a peer.

        keeps: whether it keeps copies, of which it has `holdings`. held: in memory or in its folder. speed: in GFLOP/s.
        unfit: stages for which it has no memory.
        """
        session, options, manifest = self._session, self._options, found.manifest
        member = Member(session.me, options.stage, options.capacity or 1, tuple(session.node.addresses()))
        join = Join(
            "peer",
            __version__,
            manifest.fingerprint,
            member,
            speed,
            options.rebalance_period,
            keeps,
            holdings,
            held,
            options.upload_limit or 0.0,
            unfit,
        )
        settings = PeerSettings(
            join,
            options.drain_seconds,
            stay=options.stay,
            journal_bytes_max=self._own.budget.journal_bytes,
            recompute=options.recompute,
            stores=self._left.keeps,
        )
        lease = LeaderLease(found.leader, timeouts=manifest.timeouts)
        return PeerMachine(session.me, lease, manifest.plan, settings)

    def read(self, body: Body) -> Callable[[], Buffer]:
        """Return a slice of a gradient, for the driver."""
        if self._host is None or not isinstance(body, Slice):
            raise NetworkError("a gradient was asked for before a stage was loaded")
        return self._host.end.read(body)

    def evaluate(self, message: Evaluate, bodies: list[memoryview]) -> None:
        """Compute a forward-only microbatch."""
        if self._evaluation is not None:
            self._evaluation.handle(message, bodies)

    async def keep(self, outcome: Exit | Rejoin | None, *, over: bool) -> None:
        """Keep for the next incarnation the state that its leader may need: none where the run is over.

        outcome: None where an error ends this one. Then that is what an earlier one has kept, if it is still here.
        """
        if over:
            self._between.kept = None
            await asyncio.to_thread(self._left.remove)
        elif self._loader is not None:
            kept = self._between.kept
            held = outcome.held if isinstance(outcome, Rejoin) else kept.held if kept is not None else None
            self._between.kept = await self._loader.keep(held)

    def close(self) -> None:
        """End the threads."""
        if self._host is not None:
            self._host.unload()
        for worker in self._workers:
            worker.stop()


def _trainers(machine: PeerMachine) -> list[ProcessId]:
    """Return the trainers that are known, the leader first."""
    view = machine.epoch_view
    others = [] if view is None else [member.process for member in view.alive().trainers]
    return list(dict.fromkeys((machine.lease.leader, *others)))


async def _summarize(session: Session, report: PeerReport) -> None:
    """Report to the leader what this peer has done and uses."""
    while True:
        session.driver.post(Summarized(report.summary(session.node.addresses())))
        await asyncio.sleep(SUMMARY_EVERY_S)


async def _measure(machine: PeerMachine, report: PeerReport, memory: JoinedRun) -> None:
    """Keep the gauges up to date, and the addresses of trainers."""
    metrics = report.metrics
    while True:
        named = machine.epoch_view.opened.roster if machine.epoch_view is not None else Roster()
        roster = machine.epoch_view.alive() if machine.epoch_view is not None else Roster()
        memory.keep_trainers(tuple(address for member in roster.trainers for address in member.addresses))
        metrics.version.set(max(machine.version, 0))
        metrics.step.set(max(machine.epoch.step, 0))
        for stage, members in enumerate(roster.stages):
            if named.stages[stage]:  # it does not know those of distant stages
                metrics.peers.at(stage).set(len(members))
        hops = machine.hops  # None while a stage is loaded
        metrics.queue_length.set(hops.queued if hops is not None else 0)
        metrics.held_microbatches.set(hops.held if hops is not None else 0)
        metrics.capacity_microbatches.set(hops.capacity if hops is not None else 0)
        metrics.journal_bytes.set(hops.journal.size_bytes if hops is not None else 0)
        report.measure_loading()
        await asyncio.sleep(1.0)


def _progress(machine: PeerMachine, compute: Worker) -> tuple[object, bool]:
    """Return the signs of progress of a peer, and whether it has work: none while it loads, which may take hours."""
    hops = machine.hops
    return (machine.version, compute.finished), hops is not None and (compute.working or hops.queued > 0)
