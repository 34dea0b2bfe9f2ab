"""One incarnation of a trainer: its machine, and what the machine's actions mean here."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any

import msgspec

from swarmflow import __version__
from swarmflow.compute.codec import encode_ints
from swarmflow.config import RunConfig
from swarmflow.core.actions import (
    Abandon,
    Connect,
    Exit,
    FormMicrobatch,
    Record,
    Rejoin,
    Saved,
    TookOver,
    Validate,
    WriteCheckpoint,
)
from swarmflow.core.events import DrainAsked, MicrobatchFormed, Progressed, Rival, SaveAsked, Validated
from swarmflow.core.leader import Leader
from swarmflow.core.leader_lease import FIRST_TERM, LeaderLease
from swarmflow.core.leading.memories import Former
from swarmflow.core.messages import Join
from swarmflow.core.routers import dispatcher_for
from swarmflow.core.schedule import learning_rate
from swarmflow.core.settings import LeaderSettings
from swarmflow.core.source import MicrobatchSource
from swarmflow.core.trainer import TrainerMachine
from swarmflow.core.types import Body, Member, ProcessId
from swarmflow.errors import CheckpointError, NetworkError, SwarmflowError
from swarmflow.manifest import Manifest
from swarmflow.runtime.driver import Effect
from swarmflow.runtime.evaluation import measure_loss
from swarmflow.runtime.finding import Description, FoundRun, leads_itself
from swarmflow.runtime.requests import Arguments
from swarmflow.runtime.session import Session, log
from swarmflow.runtime.store import Buffer
from trainers.checkpoints import Checkpoints
from trainers.data import Corpus
from trainers.state import OnDisk, StateFolder
from trainers.status import status_of
from trainers.steplog import StepLog

_MEASURE_EVERY_S = 1.0
FORMER_PEERS_MAX = 256  # that are remembered by name
_RIVALS_EVERY_S = 10.0
_STATUS_S = 2.0  # within which the leader answers another trainer, at which somebody waits (runtime/asking.py)


class TrainerLife:
    """Give it a session, then `lead` or `join`. took_over: called when it leads after another one.

    version: steps that were committed, as far as this trainer knows.
    """

    def __init__(
        self,
        session: Session,
        config: RunConfig,
        corpus: Corpus,
        folder: StateFolder,
        steplog: StepLog | None,
        took_over: Callable[[], None],
    ) -> None:
        self._session = session
        self._config = config
        self._corpus = corpus
        self._folder = folder
        self._steplog = steplog
        self._took_over = took_over
        self.version = 0
        self._machine: TrainerMachine | None = None
        self._manifest: Manifest | None = None
        self._checkpoints: Checkpoints | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._saves: dict[int, asyncio.Future[Saved]] = {}
        self._remembered = 0

    @property
    def leads(self) -> bool:
        """Whether this trainer leads now."""
        return self._machine is not None and self._machine.lead is not None

    def effects(self) -> dict[type[Any], Effect]:
        """What a trainer does for each kind of action."""
        return {
            Connect: self._connect,
            FormMicrobatch: self._form,
            WriteCheckpoint: self._write,
            Record: self._record,
            Validate: self._validate,
            TookOver: lambda action: self._took_over(),
            Exit: self._session.end,
            Rejoin: self._session.end,
            Abandon: self._abandon,
            Saved: self._saved,
        }

    def read(self, body: Body) -> Callable[[], Buffer]:
        """A trainer has no gradients."""
        raise TypeError("a trainer was asked for a slice of a gradient")

    def lead(self, manifest: Manifest, disk: OnDisk) -> None:
        """Begin as the leader, from the newest version on disk, or from a later one that others have copies of."""
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
            disk.digests,
            disk.known,
            disk.former,
        )
        leader.safe.copies.record(leader.me, disk.parts)
        self._start(self._session.me, disk, leader)

    def join(self, found: FoundRun, disk: OnDisk) -> None:
        """Begin as a trainer of a run that another one leads."""
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
        )

    async def report(self) -> bytes:
        """The status as JSON, whoever leads. Raises NetworkError where nobody does, or the leader does not answer."""
        machine = self._machine
        if machine is None:
            raise NetworkError("its trainer does not know the run yet")
        if machine.lead is None:
            if machine.lease.lost:
                raise NetworkError("its trainers are electing a leader")
            answer = await self._session.requests.ask(machine.leader, "status", timeout_s=_STATUS_S)
            return bytes(answer[0]) if answer else b""
        (status,) = await self._status(self._session.me, {})
        return status

    def keep_tokenizer(self) -> None:
        """Have its files in the state folder, for exports."""
        try:
            self._corpus.save_tokenizer(self._folder.tokenizer)
        except OSError as error:
            log.warning("the tokenizer is not kept in %s: %s", self._folder.tokenizer, error.strerror)

    def look_at_disk(self) -> None:
        """See whether the newest version is still there, and write what could not be written before."""
        if self._checkpoints is not None:
            self._checkpoints.look()
        if self._steplog is not None:
            self._steplog.flush()

    def drain(self) -> None:
        """The person wants this trainer to leave."""
        self._session.driver.post(DrainAsked())

    def _begin(self, manifest: Manifest, disk: OnDisk) -> None:
        self._manifest = manifest
        self.version = disk.version
        weights = None if manifest.from_seed else self._config.model.path
        chosen = self._config.run.export_every
        every = self._config.train.checkpoint_every if chosen is None else chosen
        self._checkpoints = Checkpoints(manifest, self._folder, self._config.run, weights, self._corpus, every)
        self._checkpoints.begin(self._session, disk.newest)
        self.keep_tokenizer()
        requests = self._session.requests
        requests.serve("describe", self._describe)
        requests.serve("status", self._status)
        requests.serve("save", self._save)
        requests.serve("tokenizer", self._tokenizer)

    def _start(self, leader_id: ProcessId, disk: OnDisk, leader: Leader | None) -> None:
        session, manifest = self._session, self._manifest
        assert manifest is not None
        me = self._member()
        source = MicrobatchSource(session.me, manifest.microbatches, dispatcher_for(manifest.plan, session.me, 0))
        join = Join("trainer", __version__, manifest.fingerprint, me, copies=disk.holdings)
        machine = TrainerMachine(
            me,
            LeaderLease(leader_id, timeouts=manifest.timeouts),
            manifest.plan,
            self._settings(manifest),
            source,
            join,
            disk.version,
            disk.digests,
            leader,
            parts=disk.parts,
        )
        self._machine = machine
        session.announce(lambda: "trainer", lambda: {"leads": machine.lead is not None, "version": machine.epoch.step})
        session.spawn(self._watch_for_rivals(machine), "looking for other leaders")
        session.spawn(self._measure(machine), "the metrics")
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
                for stage in range(lead.plan.stages):
                    metrics.peers.at(stage).set(len(lead.membership.ready(stage, lead.version)))
            await asyncio.sleep(_MEASURE_EVERY_S)

    async def _remember(self, machine: TrainerMachine) -> None:
        """Note how far the run has come: should all trainers die, the peers may hold that version in memory."""
        epoch_view = machine.epoch_view
        if epoch_view is None or epoch_view.epoch.step == self._remembered:
            return
        names = sorted(process.name for process in epoch_view.opened.roster.serving)
        former = Former(epoch_view.epoch.step, frozenset(names[:FORMER_PEERS_MAX]))
        try:
            await asyncio.to_thread(self._folder.keep_former, former)
        except CheckpointError as error:
            log.debug("how far the run has come is not remembered: %s", error)  # it costs a wait at a restart, no more
        else:
            self._remembered = former.version

    async def _watch_for_rivals(self, machine: TrainerMachine) -> None:
        """A network that was split may have two leaders: each finds the other in the directory."""
        session = self._session
        while True:
            await asyncio.sleep(_RIVALS_EVERY_S)
            if machine.lead is None:
                continue
            try:
                records = await session.directory.find("trainer")
            except NetworkError as error:
                log.debug("looking for other leaders failed: %s", error)
                continue
            for name, record in records.items():
                version, addresses = record.get("version"), record.get("addresses")
                claims = record.get("leads") is True and name != session.me.name
                if claims and isinstance(version, int) and isinstance(addresses, list):
                    rival = await leads_itself(session, name, tuple(a for a in addresses if isinstance(a, str)))
                    if rival is not None:
                        session.driver.post(Rival(rival, version))

    # --- actions ------------------------------------------------------------------------------------------------------

    def _connect(self, action: Connect) -> None:
        """Who takes part in a step may lead the run from now on: the next start of this trainer looks for it first."""
        self._session.connect(action)
        epoch_view = self._machine.epoch_view if self._machine is not None else None
        if epoch_view is not None:
            others = [m for m in epoch_view.opened.roster.trainers if m.process != self._session.me]
            self._folder.keep_trainers(tuple(address for member in others for address in member.addresses))
            if epoch_view.epoch.step > 0:
                self._folder.keep_begun()

    def _form(self, action: FormMicrobatch) -> None:
        microbatch = action.microbatch
        inputs, targets = self._corpus.microbatch(microbatch.epoch.step, microbatch.index)
        store = self._session.store
        tokens, wanted = store.add(encode_ints(inputs)), store.add(encode_ints(targets))
        self._session.driver.post(MicrobatchFormed(microbatch, tokens, wanted))

    def _write(self, action: WriteCheckpoint) -> None:
        assert self._checkpoints is not None
        self._checkpoints.write(self._session, action)

    def _validate(self, action: Validate) -> None:
        if self._measuring is not None:
            self._measuring.cancel()  # one of those whom it went through is gone, and would be waited for

        post = self._session.driver.post

        async def measure() -> None:
            batches = self._corpus.validation()
            loss = await measure_loss(
                self._session,
                action.version,
                action.roster,
                batches,
                lambda path: post(Progressed("validation", tuple(path))),
            )
            post(Validated(action.version, loss))

        self._measuring = self._session.spawn(measure(), "measuring the validation loss")

    def _abandon(self, action: Abandon) -> None:
        if action.what == "save" and self._checkpoints is not None:
            self._checkpoints.abandon()
        elif action.what == "validation" and self._measuring is not None:
            self._measuring.cancel()

    def _record(self, action: Record) -> None:
        result, metrics = action.result, self._session.metrics
        self._folder.keep_begun()
        self.version = result.step + 1
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
        )

    # --- questions ----------------------------------------------------------------------------------------------------

    async def _describe(self, sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        machine, manifest = self._machine, self._manifest
        if machine is None or manifest is None:
            raise NetworkError("this trainer does not know the run yet")
        if machine.lease.lost:
            leader = None
        else:
            addresses = tuple(self._session.node.addresses()) if machine.lead is not None else ()
            leader = (machine.leader.name, machine.leader.incarnation, addresses)
        return [msgspec.json.encode(Description(__version__, leader)), manifest.encode()]

    async def _status(self, sender: ProcessId, arguments: Arguments) -> tuple[bytes]:
        leader = self._leader()
        assert self._manifest is not None
        return (msgspec.json.encode(status_of(leader, self._manifest)),)

    async def _save(self, sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        """Bring a version to disk, unless there is one as new; its number."""
        number = next(self._numbers)
        future = self._saves[number] = asyncio.get_running_loop().create_future()
        self._session.driver.post(SaveAsked(number))
        try:
            saved = await future
        finally:
            del self._saves[number]
        if saved.failed:
            raise NetworkError(saved.failed)
        if saved.version == 0 and self._manifest is not None and self._manifest.from_seed:
            raise NetworkError("no step has been committed yet: there is nothing to export")
        return [msgspec.json.encode(saved.version)]

    def _saved(self, action: Saved) -> None:
        future = self._saves.get(action.number)
        if future is not None and not future.done():
            future.set_result(action)

    async def _tokenizer(self, sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        files = {path.name: path.read_bytes() for path in sorted(self._folder.tokenizer.iterdir()) if path.is_file()}
        return [msgspec.msgpack.encode(files)]

    def _leader(self) -> Leader:
        if self._machine is None or self._machine.lead is None:
            raise SwarmflowError("this trainer does not lead; ask the leader")
        return self._machine.lead
