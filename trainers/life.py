"""One incarnation of a trainer: its machine, and the effects of the machine's actions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from secrets import token_hex
from typing import Any

from swarmflow import __version__
from swarmflow.config import RunConfig
from swarmflow.core.commit.schedule import learning_rate
from swarmflow.core.commit.step_phase import StepPhase
from swarmflow.core.durability.memories import Former
from swarmflow.core.election.leader_lease import FIRST_TERM, LeaderLease
from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.leading.leader_phase import LeaderPhase
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.pipeline.dispatcher import dispatcher_for
from swarmflow.core.pipeline.source import MicrobatchSource
from swarmflow.core.protocol.actions import (
    Abandon,
    Connect,
    Exit,
    FormMicrobatch,
    Log,
    PlanStages,
    Record,
    Rejoin,
    Saved,
    TookOver,
    Validate,
    WriteCheckpoint,
)
from swarmflow.core.protocol.events import DrainAsked, MicrobatchFormed, Progressed, Rival, StagesPlanned, Validated
from swarmflow.core.protocol.messages import Join
from swarmflow.core.protocol.types import NO_EPOCH, Body, Member, ProcessId
from swarmflow.errors import CheckpointError, NetworkError
from swarmflow.manifest import Manifest
from swarmflow.planning.stage_choice import plan_stages
from swarmflow.runtime.execution.driver import Effect
from swarmflow.runtime.execution.evaluation import measure_loss
from swarmflow.runtime.execution.session import Session, log
from swarmflow.runtime.execution.store import Buffer
from swarmflow.runtime.operations.finding import FoundRun, leads_itself
from swarmflow.view.step_line import step_line
from swarmflow.view.timeline import Timeline
from trainers.answers import TrainerAnswers
from trainers.checkpoints import Checkpoints
from trainers.forming import Encoded, Forming
from trainers.found import OnDisk
from trainers.frozen import FrozenWeights
from trainers.state import StateFolder
from trainers.steplog import StepLog
from trainers.training_data import TrainingData

_MEASURE_EVERY_S = 1.0
FORMER_PEERS_MAX = 256  # names of peers that are kept
_LEADERS_EVERY_S = 10.0


class TrainerLife:
    """One incarnation of a trainer in its session, begun by `lead` or `join`."""

    def __init__(
        self,
        session: Session,
        config: RunConfig,
        corpus: TrainingData,
        folder: StateFolder,
        steplog: StepLog | None,
        timeline: Timeline,
        on_takeover: Callable[[], None],
    ) -> None:
        self._session = session
        self._config = config
        self._corpus = corpus
        self._forming = Forming(corpus, session.fail)
        self._folder = folder
        self._steplog = steplog
        self._timeline = timeline
        self._on_takeover = on_takeover  # called when it begins to lead after another trainer
        self.version = 0  # steps that were committed, as far as this trainer knows
        self.answers = TrainerAnswers(session, folder, timeline)
        self._machine: TrainerMachine | None = None
        self._manifest: Manifest | None = None
        self._checkpoints: Checkpoints | None = None
        self._measuring: asyncio.Task[None] | None = None  # of the validation loss
        self._remembered = NO_EPOCH  # the last one that the folder tells of

    @property
    def leads(self) -> bool:
        """Whether this trainer leads now."""
        return self._machine is not None and self._machine.lead is not None

    def effects(self) -> dict[type[Any], Effect]:
        """Return the effect of each kind of action."""
        return {
            Connect: self._connect,
            Log: self._log,
            FormMicrobatch: self._form,
            WriteCheckpoint: self._write,
            Record: self._record,
            Validate: self._validate,
            PlanStages: self._plan,
            TookOver: lambda action: self._on_takeover(),
            Exit: self._session.end,
            Rejoin: self._session.end,
            Abandon: self._abandon,
            Saved: self.answers.saved,
        }

    def close(self) -> None:
        """End its thread."""
        self._forming.close()

    def read(self, body: Body) -> Callable[[], Buffer]:
        """Raise TypeError: a trainer has no gradients."""
        raise TypeError("a trainer was asked for a slice of a gradient")

    def lead(self, manifest: Manifest, disk: OnDisk) -> None:
        """Begin as the leader, from the newest version on disk, or a later one that other processes have copies of."""
        version = disk.version
        if version:
            log.info("resuming at version %d", version)
        self._begin(manifest, disk)
        leader = Leader(
            self._member(),
            manifest.plan,
            self._settings(manifest),
            FIRST_TERM,
            version,
            version,
            disk.roots,
            disk.newest_seen,
            disk.former,
        )
        leader.safe.copies.record(leader.me, disk.parts)
        self._start(self._session.me, disk, leader)

    def join(self, found: FoundRun, disk: OnDisk) -> None:
        """Begin as a trainer of a run that another trainer leads."""
        self._begin(found.manifest, disk)
        self._start(found.leader, disk, None)

    def _settings(self, manifest: Manifest) -> LeaderSettings:
        train, optimizer = self._config.train, self._config.optimizer
        return LeaderSettings(
            steps=train.steps,
            learning_rate=lambda step: learning_rate(optimizer, train.steps, step),
            clip=optimizer.clip_grad_norm,
            software=__version__,
            run=manifest.fingerprint,
            from_seed=manifest.from_seed,
            new_lineage=lambda: token_hex(8),
            checkpoint_every=train.checkpoint_every,
            validate_every=train.validate_every,
            planned=train.placement == "planned",
        )

    def keep_tokenizer(self) -> None:
        """Keep the tokenizer's files in the state folder, for exports."""
        try:
            self._corpus.save_tokenizer(self._folder.tokenizer)
        except OSError as error:
            log.warning("the tokenizer is not kept in %s: %s", self._folder.tokenizer, error.strerror)

    def look_at_disk(self) -> None:
        """Check that the newest version is on disk, and retry writes that have failed."""
        if self._checkpoints is not None:
            self._checkpoints.look()
        if self._steplog is not None:
            self._steplog.flush()

    def drain(self) -> None:
        """Leave the run, as the user asks."""
        self._session.driver.post(DrainAsked())

    def _begin(self, manifest: Manifest, disk: OnDisk) -> None:
        self._manifest = manifest
        self._session.fit(manifest)
        self._corpus.fit(manifest)
        self.version = disk.version
        weights = None if manifest.from_seed else self._config.model.path
        chosen = self._config.run.export_every
        every = self._config.train.checkpoint_every if chosen is None else chosen
        self._checkpoints = Checkpoints(manifest, self._folder, self._config.run, weights, self._corpus, every)
        self._checkpoints.begin(self._session, disk.newest)
        if manifest.base:
            assert self._config.model.path is not None, "RUN.toml is that of the run"
            FrozenWeights(manifest, self._config.model.path).serve(self._session.requests)
        self.keep_tokenizer()
        self.answers.serve(manifest)

    def _start(self, leader_id: ProcessId, disk: OnDisk, leader: Leader | None) -> None:
        session, manifest = self._session, self._manifest
        assert manifest is not None
        me = self._member()
        own = dispatcher_for(manifest.plan, session.me, 0), manifest.plan.without_graph
        source = MicrobatchSource(session.me, manifest.microbatches, *own)
        join = Join("trainer", __version__, manifest.fingerprint, me, copies=disk.holdings)
        machine = TrainerMachine(
            me,
            LeaderLease(leader_id, timeouts=manifest.timeouts),
            manifest.plan,
            self._settings(manifest),
            source,
            join,
            disk.version,
            disk.roots,
            leader,
            parts=disk.parts,
        )
        self._machine = self.answers.machine = machine
        session.announce(lambda: "trainer", lambda: {"leads": machine.lead is not None, "version": machine.epoch.step})
        session.spawn(self._watch_for_leaders(machine), "looking for other leaders")
        session.spawn(self._measure(machine), "the metrics")
        session.spawn(session.metrics.progress.follow(lambda: _progress(machine)), "the progress")
        session.driver.run(machine, machine.start(asyncio.get_running_loop().time()))

    def _member(self) -> Member:
        return Member(self._session.me, -1, 1, tuple(self._session.node.addresses()))

    async def _measure(self, machine: TrainerMachine) -> None:
        """Keep the gauges up to date between the commits."""
        metrics = self._session.metrics
        while True:
            metrics.journal_bytes.set(machine.source.dispatcher.flights.size_bytes)
            await self._remember(machine)
            if (lead := machine.lead) is not None:
                metrics.step.set(lead.version)
                metrics.version.set(lead.version)
                self._timeline.wait("" if lead.step is not None else lead.waiting_for, lead.version, time.time())
                for stage in range(lead.plan.stages):
                    metrics.peers.at(stage).set(len(lead.membership.ready(stage, lead.version)))
            await asyncio.sleep(_MEASURE_EVERY_S)

    async def _remember(self, machine: TrainerMachine) -> None:
        """Record how far the run has come: should all trainers die, the peers may hold that version in memory."""
        epoch_view = machine.epoch_view
        if epoch_view is None or epoch_view.epoch == self._remembered:
            return
        epoch = epoch_view.epoch
        names = sorted(process.name for process in epoch_view.opened.roster.peer_ids)
        former = Former(epoch.step, frozenset(names[:FORMER_PEERS_MAX]), epoch.generation)
        try:
            await asyncio.to_thread(self._folder.keep_former, former)
        except CheckpointError as error:
            log.debug("how far the run has come is not remembered: %s", error)  # it costs a wait at a restart, no more
        else:
            self._remembered = epoch

    async def _watch_for_leaders(self, machine: TrainerMachine) -> None:
        """Look for another leader in the directory: a network that was split may have two."""
        session = self._session
        while True:
            await asyncio.sleep(_LEADERS_EVERY_S)
            if machine.lead is None:
                continue
            try:
                records = await session.trainers()
            except NetworkError as error:
                log.debug("looking for other leaders failed: %s", error)
                continue
            for name, record in records.items():
                version, addresses = record.get("version"), record.get("addresses")
                claims = record.get("leads") is True and name != session.me.name
                if claims and isinstance(version, int) and isinstance(addresses, list):
                    rival = await leads_itself(session, name, tuple(addresses))
                    if rival is not None:
                        session.driver.post(Rival(rival, version))

    # --- actions ------------------------------------------------------------------------------------------------------

    def _connect(self, action: Connect) -> None:
        """Keep the addresses of the trainers, any of which may lead later: the next start looks for them first."""
        self._session.connect(action)
        epoch_view = self._machine.epoch_view if self._machine is not None else None
        if epoch_view is not None:
            others = [m for m in epoch_view.opened.roster.trainers if m.process != self._session.me]
            self._folder.keep_trainers(tuple(address for member in others for address in member.addresses))
            if epoch_view.epoch.step > 0:
                self._folder.keep_begun()

    def _log(self, action: Log) -> None:
        """Log a line; what the leader decides belongs to the timeline of the run too."""
        self._session.log(action)
        if self.leads:
            self._timeline.log(action, self.version, time.time())

    def _form(self, action: FormMicrobatch) -> None:
        def formed(encoded: Encoded) -> None:
            store = self._session.store
            tokens, targets = store.add(encoded[0]), store.add(encoded[1])
            self._session.driver.post(MicrobatchFormed(action.microbatch, tokens, targets))

        self._forming.form(action.microbatch, formed)

    def _write(self, action: WriteCheckpoint) -> None:
        assert self._checkpoints is not None
        self._checkpoints.write(self._session, action)

    def _validate(self, action: Validate) -> None:
        if self._measuring is not None:
            self._measuring.cancel()  # one of its peers is gone, and it would wait for that peer

        post = self._session.driver.post

        async def measure() -> None:
            loss = await measure_loss(
                self._session,
                action.version,
                action.roster,
                self._forming.validation(),
                lambda path: post(Progressed("validation", tuple(path))),
            )
            post(Validated(action.version, loss))

        self._measuring = self._session.spawn(measure(), "measuring the validation loss")

    def _plan(self, action: PlanStages) -> None:
        async def plan() -> None:
            try:
                planned = await asyncio.to_thread(plan_stages, action)
            except Exception:  # a run goes on without a plan
                log.exception("the stages of peers could not be planned")
                planned = StagesPlanned(action.number)
            self._session.driver.post(planned)

        self._session.spawn(plan(), "planning the stages of peers")

    def _abandon(self, action: Abandon) -> None:
        if action.what == "save" and self._checkpoints is not None:
            self._checkpoints.abandon()
        elif action.what == "validation" and self._measuring is not None:
            self._measuring.cancel()

    def _record(self, action: Record) -> None:
        result, metrics = action.result, self._session.metrics
        self._folder.keep_begun()
        self.version = result.step + 1
        line = step_line(result, time.time())
        self._timeline.committed(line)
        if self._steplog is not None:
            self._steplog.write(result)
        metrics.step.set(result.step + 1)
        metrics.version.set(result.step + 1)
        metrics.loss.set(result.loss)
        metrics.grad_norm.set(result.grad_norm)
        metrics.learning_rate.set(result.learning_rate)
        metrics.step_seconds.observe(result.seconds)
        metrics.tokens.inc(result.tokens)
        for stage, count in enumerate(result.peers):
            metrics.peers.at(stage).set(count)
        validation = ""
        if result.validation_loss is not None:
            metrics.validation_loss.set(result.validation_loss)
            validation = f", validation loss {result.validation_loss:.4f}"
        log.info(
            "step %d: loss %.4f%s, %.0f tokens/s, peers %s, %.2f s",
            result.step,
            result.loss,
            validation,
            result.tokens / max(result.seconds, 1e-9),
            "+".join(str(count) for count in result.peers),
            result.seconds,
            extra={"kind": "committed", "fields": line},
        )


def _progress(machine: TrainerMachine) -> tuple[object, bool]:
    """Return the signs of progress of a trainer, and whether it has work: a leader's open step, unless that is held."""
    lead = machine.lead
    if lead is None or lead.step is None or lead.phase is not LeaderPhase.RUNNING:
        return None, False
    step = lead.step
    held = step.phase is StepPhase.COMPLETE and lead.ballots.complete_s is not None  # for peers that load its version
    return (lead.version, step.phase, step.ledger.done_hops, step.ballot.number), not held
