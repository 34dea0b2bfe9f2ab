"""The answers of a trainer to requests outside the protocol of training: what the run is, how it is, and its files."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from swarmflow import __version__
from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.pipeline.flight_table import FlightTable
from swarmflow.core.protocol.actions import Saved
from swarmflow.core.protocol.events import SaveAsked
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import NetworkError, SwarmflowError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.operations.exporting import tokenizer_files
from swarmflow.runtime.operations.finding import Description
from swarmflow.runtime.operations.link_trial import LinkTrial
from swarmflow.runtime.operations.own_reach import DialBack
from swarmflow.runtime.transport.allowance import Allowance, Allowances
from swarmflow.runtime.transport.requests import BUSY, Arguments
from swarmflow.view.links import links_of
from swarmflow.view.run_view import view_of
from swarmflow.view.timeline import Timeline
from swarmflow.view.watching import Question, answer_to, brief
from trainers.state import StateFolder

PASSED_ON = "status/passed-on"  # topic of what others have asked a trainer that does not lead
_OFTEN = Allowance(burst=16, per_s=8.0)  # of one process; a live view asks once or twice a second
_BRIEF_S = 0.9
_STATUS_S = 2.0  # within which the leader answers another trainer, whose caller waits (runtime/operations/asking.py)


class TrainerAnswers:
    """Answers requests for one incarnation of a trainer, from `serve` on.

    Until `machine` is set, the answer to all but the tokenizer is that the trainer does not know the run.
    """

    def __init__(
        self, session: Session, folder: StateFolder, timeline: Timeline, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.machine: TrainerMachine | None = None
        self._session = session
        self._folder = folder
        self._timeline = timeline
        self._manifest: Manifest | None = None
        self._numbers = itertools.count()  # of requests to save
        self._brief: tuple[float, dict[str, Any]] | None = None  # when it was made
        self._allowances = Allowances(clock)  # by the name of who asks for the status
        self._saves: dict[int, asyncio.Future[Saved]] = {}  # by number, until they are answered

    def serve(self, manifest: Manifest) -> None:
        """Begin to answer requests about a run."""
        self._manifest = manifest
        requests = self._session.requests
        requests.serve("describe", self._describe)
        requests.serve("status", self._status)
        requests.serve(PASSED_ON, self._passed_on, for_trainers=True)
        requests.serve("save", self._save, for_trainers=True)
        requests.serve("tokenizer", self._tokenizer)
        DialBack(self._session.node).serve(requests)
        LinkTrial(requests).serve()

    async def report(self, question: Question | None) -> bytes:
        """Return the status as JSON, or the answer to a question, from whichever trainer leads.

        Raises NetworkError where no trainer leads, or the leader does not answer.
        """
        machine = self.machine
        if machine is None:
            raise NetworkError("its trainer does not know the run yet")
        if machine.lead is None:
            if machine.lease.lost_s is not None:
                raise NetworkError("its trainers are electing a leader")
            arguments = {} if question is None else asdict(question)
            answer = await self._session.requests.ask(machine.leader, PASSED_ON, arguments, timeout_s=_STATUS_S)
            return bytes(answer[0]) if answer else b""
        return self._report(question)

    def saved(self, action: Saved) -> None:
        """Answer the request to save that this action is about, if its sender still waits."""
        future = self._saves.get(action.number)
        if future is not None and not future.done():
            future.set_result(action)

    async def _describe(self, sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        machine, manifest = self.machine, self._manifest
        if machine is None or manifest is None:
            raise NetworkError("this trainer does not know the run yet")
        if machine.lease.lost_s is not None:
            leader = None
        else:
            addresses = tuple(self._session.node.addresses()) if machine.lead is not None else ()
            leader = (machine.leader.name, machine.leader.incarnation, addresses)
        described = [msgspec.json.encode(Description(__version__, leader)), manifest.encode()]
        policy = self._session.access.policy
        return described if policy is None else [*described, policy.encode()]

    async def _status(self, sender: ProcessId, arguments: Arguments) -> tuple[bytes]:
        """Return the status; with arguments, those of a Question, what happened since as well."""
        if not self._allowances.take(sender.name, _OFTEN):
            raise NetworkError(BUSY)
        return self._status_of(arguments)

    async def _passed_on(self, sender: ProcessId, arguments: Arguments) -> tuple[bytes]:
        """Return the status to a trainer, which limits those who ask it itself (runtime/operations/answering.py)."""
        return self._status_of(arguments)

    def _status_of(self, arguments: Arguments) -> tuple[bytes]:
        if not arguments:
            return (self._report(None),)
        try:
            return (self._report(msgspec.convert(arguments, Question)),)
        except msgspec.ValidationError as error:
            raise NetworkError(f"a question that cannot be read: {error}") from None

    def _report(self, question: Question | None) -> bytes:
        leader, manifest = self._leader(), self._manifest
        assert self.machine is not None
        assert manifest is not None
        if question is not None and question.links:
            return msgspec.json.encode(links_of(leader))
        flights = self.machine.source.dispatcher.flights
        if question is not None and question.brief:
            return msgspec.json.encode(answer_to(question, self._brief_view(leader, manifest), self._timeline))
        view = view_of(leader, flights, self._timeline, manifest.name, manifest.run_id, time.time())
        return msgspec.json.encode(view if question is None else answer_to(question, view, self._timeline))

    def _brief_view(self, leader: Leader, manifest: Manifest) -> dict[str, Any]:
        """Return the brief view, made once a second however many terminals of peers show it."""
        now_s = time.monotonic()
        if self._brief is None or now_s >= self._brief[0] + _BRIEF_S:
            view = view_of(leader, FlightTable(), self._timeline, manifest.name, manifest.run_id, time.time())
            self._brief = (now_s, brief(view))
        return self._brief[1]

    async def _save(self, sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        """Save the current version unless it is on disk already, and return the number of the version on disk."""
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

    async def _tokenizer(self, sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        files = {name: path.read_bytes() for name, path in tokenizer_files(self._folder.tokenizer).items()}
        return [msgspec.msgpack.encode(files)]

    def _leader(self) -> Leader:
        if self.machine is None or self.machine.lead is None:
            raise SwarmflowError("this trainer does not lead; ask the leader")
        return self.machine.lead
