"""One life of a process in the network: node, links, requests, directory and driver, made and closed together."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from swarmflow.authority.access import AccessControl
from swarmflow.authority.policy import AccessPolicy
from swarmflow.core.protocol.actions import Connect, Count, Exit, Forget, Log, Rejoin
from swarmflow.core.protocol.types import Body, ProcessId
from swarmflow.errors import AuthorityError, FrameError, NetworkError, SwarmflowError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.driver import Driver, Effect
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.signatures import Signatures
from swarmflow.runtime.execution.store import Store
from swarmflow.runtime.transport.directory import Directory, Field
from swarmflow.runtime.transport.incarnations import new_incarnation
from swarmflow.runtime.transport.links import Links
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.requests import Requests
from swarmflow.runtime.transport.upload_limit import UploadLimit
from swarmflow.runtime.transport.wire import Evaluate, PolicyChanged, encode_header, message_name

log = logging.getLogger("swarmflow")

T = TypeVar("T")

ANNOUNCE_EVERY_S = 10.0
ANNOUNCE_POLL_S = 0.5
ANNOUNCE_EXPIRY_S = 35.0  # three announcements may fail before others forget a process


class Counters:
    """Counts the traffic of the links in the process's metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def sent(self, lane: str, header: bytes, size_bytes: int) -> None:
        """Count a frame that was sent."""
        self._metrics.sent_bytes.at(message_name(header)).inc(size_bytes)

    def received(self, lane: str, header: bytes, size_bytes: int) -> None:
        """Count a frame that has arrived."""
        self._metrics.received_bytes.at(message_name(header)).inc(size_bytes)

    def refused(self, kind: str) -> None:
        """Count a refused frame or stream."""
        self._metrics.frames_refused.at(kind).inc()

    def queued(self, lane: str, change_bytes: int) -> None:
        """Record a change of the bytes that wait to be sent."""
        self._metrics.queued_bytes.at(lane).inc(change_bytes)


class Session:
    """One incarnation of a process: `open` it, give the driver a machine, wait for `ended`, then `close` it.

    A process that has to join again opens another session on the same node.
    """

    def __init__(self, node: Node, access: AccessControl, metrics: Metrics, upload: UploadLimit | None = None) -> None:
        """access: to the run. upload: limit of the bytes per second that the process sends; None: what links take."""
        self.node = node
        self._upload = upload
        self.access = access
        self.on_policy: Callable[[AccessPolicy], None] | None = None  # called with a newer policy, once it is applied
        self.metrics = metrics
        self.me = ProcessId(node.name, new_incarnation())
        self.store = Store()
        self.directory = Directory(node, access.run_id)
        self.directory.require("trainer", self._is_trainers)
        self.ended: asyncio.Future[Exit | Rejoin] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[Any]] = set()

    def open(
        self,
        effects: Mapping[type[Any], Effect],
        read: Callable[[Body], Any],
        evaluate: Callable[[Evaluate, list[memoryview]], None] | None = None,
    ) -> None:
        """Make the driver and the links. effects: those of the role's actions."""
        shared: dict[type[Any], Effect] = {
            Connect: self.connect,
            Forget: self._forget,
            Log: self.log,
            Count: self._count,
        }
        signatures = Signatures(self.access, self.node.key)
        does = {**shared, **effects}, self.fail, read, evaluate, self._on_policy, signatures
        self.driver = Driver(self.me, self.store, self.metrics, *does)
        self.links = Links(
            self.node,
            self.me,
            self.access,
            on_message=self.driver.receive,
            on_lost=self.driver.lost,
            counters=Counters(self.metrics),
            upload=self._upload,
        )
        self.requests = Requests(self.links)
        self.driver.connect(self.links, self.requests)
        self.spawn(self._watch_node(), "the network daemon")

    def fit(self, manifest: Manifest) -> None:
        """Set the limits of the links to the sizes of a run, as soon as that is known."""
        self.links.fit(manifest.tensor_bytes_max, manifest.microbatches, manifest.stages)

    def adopt(self, policy: AccessPolicy) -> None:
        """Apply this policy of the run from now on, if it is newer than the present one."""
        if self.access.adopt(policy):
            self.links.drop_excluded()
            if self.on_policy is not None:
                self.on_policy(policy)

    def spread(self, policy: AccessPolicy) -> None:
        """Send a policy to all processes with a connection to this one."""
        header, body = encode_header(PolicyChanged()), policy.encode()
        for process in self.links.connected():
            self.links.send(process, header, (body,))

    def spawn(self, work: Awaitable[object], what: str) -> asyncio.Task[None]:
        """Run a task beside the driver; an error that it raises ends the session."""

        async def guarded() -> None:
            try:
                await work
            except SwarmflowError as error:
                self.fail(error)
            except Exception as error:
                log.debug("%s failed", what, exc_info=True)
                self.fail(error)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if asyncio.iscoroutine(work):
                work.close()  # Python complains of a coroutine that is cancelled before it begins

        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    async def unless_ended(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of the work; None when the session ends before, which cancels the work."""
        task = asyncio.get_running_loop().create_task(work)
        await asyncio.wait((task, self.ended), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None

    def end(self, outcome: Exit | Rejoin) -> None:
        """End the session with this outcome."""
        if not self.ended.done():
            self.ended.set_result(outcome)

    def fail(self, error: BaseException) -> None:
        """End the session because of an error."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def announce(self, kind: Callable[[], str | None], value: Callable[[], dict[str, Any]]) -> None:
        """Announce this process in the DHT periodically, until the session is closed; a failure is tried again.

        kind: under which it is found; announced soon after it changes. None: it is not announced yet.
        """
        self.spawn(self._announce(kind, value), "the announcement")

    async def trainers(self, timeout_s: float = 20.0) -> dict[str, dict[str, Field]]:
        """Return the records in the directory of those that prove to be trainers of the run, by their names.

        Raises NetworkError when the DHT does not answer in time.
        """
        records = await self.directory.find("trainer", timeout_s)
        return {name: record for name, record in records.items() if self._is_trainers(name, record)}

    def _is_trainers(self, name: str, record: Mapping[str, Field]) -> bool:
        credential = record.get("credential")
        try:
            shown = base64.b64decode(credential) if isinstance(credential, str) else b""
            certificate = self.access.admit(name, shown)
        except (binascii.Error, ValueError, AuthorityError) as error:
            log.debug("a record of %s as a trainer is ignored: %s", name[-6:], error)
            return False
        return certificate is not None and certificate.role == "trainer"

    async def close(self, flush_s: float = 2.0) -> None:
        """Send what is queued, and stop."""
        self.driver.halt()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.links.close(flush_s)
        if self.ended.done() and not self.ended.cancelled():
            self.ended.exception()  # retrieved, so that asyncio does not report it a second time

    async def _announce(self, kind: Callable[[], str | None], value: Callable[[], dict[str, Any]]) -> None:
        loop = asyncio.get_running_loop()
        announced: str | None = None
        again_s = 0.0
        while True:
            name = kind()
            if name is not None and (name != announced or loop.time() >= again_s):
                credential = base64.b64encode(self.access.credential(self.me.name)).decode()
                where = {"incarnation": self.me.incarnation, "addresses": self.node.addresses()}
                record = {**where, "credential": credential, **value()}
                try:
                    if announced is not None and announced != name:
                        await self.directory.withdraw(announced)
                    await self.directory.announce(name, record, ANNOUNCE_EXPIRY_S)
                except NetworkError as error:
                    log.debug("announcing failed: %s", error)
                announced, again_s = name, loop.time() + ANNOUNCE_EVERY_S
            await asyncio.sleep(ANNOUNCE_POLL_S)

    async def _watch_node(self) -> None:
        reason = await self.node.died()
        raise NetworkError(f"the network daemon of this process ended: {reason}; start the process again")

    def connect(self, action: Connect) -> None:
        """Set the addresses of other processes."""
        for member in action.members:
            if member.addresses:
                self.links.set_addresses(member.process, member.addresses)

    def _on_policy(self, bodies: list[memoryview]) -> None:
        """Take a policy that another process passes on. Raises FrameError where it is none."""
        try:
            self.adopt(AccessPolicy.decode(b"".join(bodies), self.access.run_id))
        except AuthorityError as error:
            raise FrameError(str(error)) from None

    def _forget(self, action: Forget) -> None:
        """Close the connections of a process: a frozen one would keep them open, and requests would wait for it."""
        self.links.forget(action.process)
        self.requests.on_process_lost(action.process, "it was given up")

    def log(self, action: Log) -> None:
        """Write a line of the machine into the log of the process."""
        fields: dict[str, object] = {}
        if action.process is not None:
            fields["peer"] = str(action.process)
        if action.stage >= 0:
            fields["stage"] = action.stage
        extra = {"kind": action.kind or "", "fields": fields}
        log.log(logging.getLevelNamesMapping()[action.level.upper()], "%s", action.text, extra=extra)

    def _count(self, action: Count) -> None:
        self.metrics.count(action.name, action.label, action.amount)
