"""Messages between the processes of one run: one-way streams over the node, opened on demand, and their loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from swarmflow.authority.access import AccessControl
from swarmflow.authority.certificates import Certificate
from swarmflow.core.protocol.types import ProcessId, Role
from swarmflow.errors import AuthorityError, FrameError
from swarmflow.latest import Latest
from swarmflow.runtime.transport.acknowledging import AcknowledgingReader
from swarmflow.runtime.transport.door import Caller, Door
from swarmflow.runtime.transport.frames import DAMAGE, FrameLimits, FrameRefusedError, read_frame
from swarmflow.runtime.transport.hello import (
    PROTOCOL_VERSION,
    Hello,
    HelloReply,
    LaneName,
    pack_reply,
    read_confirmation,
    read_hello,
)
from swarmflow.runtime.transport.incarnations import IncarnationTracker
from swarmflow.runtime.transport.lanes import Body, LaneSettings, LinkCounters, OutboundLane, nothing
from swarmflow.runtime.transport.limits import ADDRESSED_MAX, DOOR, FRAMES_AT_ONCE, budget_limits, peer_limits
from swarmflow.runtime.transport.link_streams import InboundStream, LinkStreams, Slot
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.precedence import Precedence
from swarmflow.runtime.transport.receive_budget import FrameMemory, ReceiveBudget
from swarmflow.runtime.transport.upload_limit import UploadLimit

log = logging.getLogger(__name__)

# Constant over all versions, so that the hello of another version is refused with a reason.
STREAM_PROTOCOL = "/swarmflow/messages"

OnMessage = Callable[[ProcessId, bytes, list[memoryview], Role | None], None]
OnLost = Callable[[ProcessId, str], None]


class Links:
    """Sends and receives the messages of one process in one run, on four lanes a direction.

    Control, bulk (tensors), sums (pieces of an all-reduce) and background: each of the last two gives way to all before
    it, to whichever process they go. Order is kept within a lane. A broken stream loses what was queued to that process
    and is reported once, by `on_lost`; nothing is sent again, and the next `send` opens anew. `on_message` and
    `on_lost` are called on the event loop, never from inside `send`. `on_message(sender, header, bodies, role)` owns
    the bodies (writable uint8 views), and has the role that the sender's certificate gives it (None: it has none); when
    it raises FrameError, the message counts as refused and its stream is closed.
    """

    def __init__(
        self,
        node: Node,
        local: ProcessId,
        access: AccessControl,
        *,
        on_message: OnMessage,
        on_lost: OnLost,
        counters: LinkCounters,
        limits: FrameLimits | None = None,
        settings: LaneSettings | None = None,
        upload: UploadLimit | None = None,
        door: Door | None = None,
    ) -> None:
        self.local = local
        self._node = node
        self._access = access  # to the run
        self._credential = access.credential(local.name)
        self._on_message = on_message
        self._on_lost = on_lost
        self._counters = counters
        self._limits = limits or FrameLimits()
        self._peer_limits = peer_limits(self._limits, 0, 0)  # of frames from those who are no trainers
        self._settings = settings or LaneSettings()
        self._upload = upload  # that this process' links share; None: there is no limit
        self._precedence = Precedence()
        self._links: dict[ProcessId, LinkStreams] = {}
        self._lives = IncarnationTracker()
        self._addresses = Latest[str, tuple[str, ...]](ADDRESSED_MAX)  # name -> multiaddrs to dial
        self._door = door or Door(DOOR)
        self._budget = ReceiveBudget(budget_limits(0))
        self._accepted: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # by the task that reads the stream
        self._aborted: set[asyncio.Task[None]] = set()  # tasks of dropped lanes that have not ended yet
        self._closed = False

    def give(self, share: float) -> None:
        """Note that a peer loads from here, which gets at least this share of what is sent (see `Precedence`)."""
        self._precedence.give(share)

    def fit(self, tensor_bytes: int, microbatches: int, stages: int) -> None:
        """Raise the limits of the streams for a run, where its tensors or reports are larger than usual.

        tensor_bytes: the largest body; a frame has two at most. microbatches: of a step. A repair may send all of them,
        and the gradients of all of them, to one process, from memory that holds them already.
        """
        limits, settings = FrameLimits(), LaneSettings()
        queue_bytes = 2 * microbatches * tensor_bytes
        self._limits = replace(limits, bodies_bytes_max=max(limits.bodies_bytes_max, 2 * tensor_bytes))
        self._peer_limits = peer_limits(self._limits, stages, microbatches)
        self._budget.limits = budget_limits(tensor_bytes)
        self._settings = replace(settings, queue_bytes_max=max(settings.queue_bytes_max, queue_bytes))
        for link in self._links.values():
            for lane in link.outbound.values():
                lane.fit(self._limits, self._settings)

    async def start(self) -> None:
        """Accept streams from other processes from now on."""
        await self._node.serve(STREAM_PROTOCOL, self._accept)

    def set_addresses(self, to: ProcessId | str, maddrs: Sequence[str]) -> None:
        """Set where to dial a process (multiaddrs), in place of earlier addresses."""
        name = to.name if isinstance(to, ProcessId) else to
        self._addresses[name] = tuple(maddrs)

    def send(
        self,
        to: ProcessId,
        header: bytes,
        bodies: Sequence[Body] = (),
        *,
        lane: LaneName = "control",
        done: Callable[[], None] = nothing,
    ) -> None:
        """Queue a message; never blocks. After `close`, messages are dropped.

        lane: "bulk" is for tensors, "sums" and "background" give way to it (see `Precedence`).
        to: incarnation 0 reaches whichever incarnation of the process answers. bodies: at most `bodies_max` contiguous
        buffers, which must not change until they are sent, or functions that make one when its turn comes. A full queue
        is a loss of the process. done: called when the message is written, or dropped. Raises ValueError when the
        message is over the limits or addressed to this process.
        """
        if to.name == self.local.name:
            raise ValueError("a process does not send to itself")
        if self._closed:
            return done()
        link = self._links.setdefault(to, LinkStreams())
        outbound = link.outbound.get(lane)
        if outbound is None:
            outbound = link.outbound[lane] = self._open_lane(to, lane)
        if not outbound.push(header, bodies, done):
            done()
            self._lose(to, link, f"the queue of its {lane} lane is full")

    def forget(self, to: ProcessId) -> None:
        """Close every stream from and to a process that is gone, without a call of `on_lost`."""
        link = self._links.pop(to, None)
        if link is not None:
            self._drop_outbound(link)
            for stream in link.inbound.values():
                stream.drop()

    def drop_excluded(self) -> None:
        """Close the connections of processes that the present policy does not admit; each counts as lost."""
        for process, link in list(self._links.items()):
            refusals = {self._access.refusal(stream.certificate) for stream in link.inbound.values()} - {""}
            if refusals:
                self._drop_inbound(link)
                self._lose(process, link, refusals.pop())

    def caller(self, process: ProcessId) -> Caller:
        """Return a process with the address from which its streams come, where it has opened one."""
        return self._links.get(process, LinkStreams()).caller(process.name)

    def connected(self) -> list[ProcessId]:
        """Return the processes with an open stream in either direction, or one that is being opened."""
        return sorted(process for process, link in self._links.items() if link.outbound or link.inbound)

    async def close(self, flush_s: float) -> None:
        """Send the queues, for at most `flush_s` seconds, then close every stream."""
        self._closed = True
        lanes = [lane for link in self._links.values() for lane in link.outbound.values()]
        if lanes:
            await asyncio.wait([lane.finish() for lane in lanes], timeout=flush_s)
        tasks = {lane.abort() for lane in lanes} | self._aborted
        for link in self._links.values():
            for stream in link.inbound.values():
                stream.drop()
        # Their tasks are not cancelled, because asyncio's streams report a cancelled handler as an error.
        for writer in self._accepted.values():
            writer.transport.abort()
        tasks |= self._accepted.keys()
        if tasks:
            await asyncio.wait(tasks)
        self._links.clear()

    def _open_lane(self, to: ProcessId, lane: LaneName) -> OutboundLane:
        challenge = 0

        async def open_stream() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            nonlocal challenge
            maddrs = self._addresses.get(to.name, ())
            if maddrs:  # those that are dialled are forgotten last
                self._addresses.move_to_end(to.name)
            stream = await self._node.open_stream(to.name, STREAM_PROTOCOL, maddrs, self._settings.open_timeout_s)
            challenge = self._lives.challenge()
            return stream

        def on_welcome(incarnation: int) -> bool:
            return self._record_answer(ProcessId(to.name, incarnation), challenge)

        def on_broken(reason: str) -> None:
            link = self._links.get(to)
            if link is not None and link.outbound.get(lane) is opened:
                self._lose(to, link, reason)

        opened = OutboundLane(
            open_stream,
            Hello(self._access.run_id, lane, self.local.incarnation, to.incarnation, self._credential),
            limits=self._limits,
            settings=self._settings,
            counters=self._counters,
            on_broken=on_broken,
            on_welcome=on_welcome,
            precedence=self._precedence,
            upload=self._upload,
        )
        return opened

    def _record_answer(self, process: ProcessId, challenge: int) -> bool:
        """Record the answer of an incarnation; the one that it replaces is lost. Return whether it is current."""
        current, replaced = self._lives.answered(process, challenge)
        link = self._links.get(replaced) if replaced is not None else None
        if replaced is not None and link is not None:
            self._drop_inbound(link)
            self._lose(replaced, link, "was started anew")
        return current

    def _lose(self, process: ProcessId, link: LinkStreams, reason: str) -> None:
        """Close the lanes to a process, and report its loss from the event loop."""
        self._drop_outbound(link)
        for stream in link.inbound.values():
            stream.notified = True
        self._remove_if_empty(process, link)
        if not self._closed:
            log.debug("lost %s: %s", process, reason)
            asyncio.get_running_loop().call_soon(self._on_lost, process, reason)

    def _remove_if_empty(self, process: ProcessId, link: LinkStreams) -> None:
        if not link.inbound and not link.outbound:
            self._links.pop(process, None)

    def _drop_inbound(self, link: LinkStreams) -> None:
        for stream in link.inbound.values():
            stream.drop()
        link.inbound.clear()

    def _drop_outbound(self, link: LinkStreams) -> None:
        for lane in link.outbound.values():
            task = lane.abort()
            self._aborted.add(task)
            task.add_done_callback(self._aborted.discard)
        link.outbound.clear()

    async def _accept(self, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle a stream that another process has opened, until it ends."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("streams are accepted in a task")
        self._accepted[task] = writer
        try:
            welcomed = await self._welcome(caller, reader, writer)
            if welcomed is not None:
                hello, certificate = welcomed
                stream = InboundStream(caller, writer, certificate)
                slot = hello.lane, hello.expected != 0
                await self._read(ProcessId(caller.name, hello.incarnation), slot, reader, stream)
        except OSError as error:
            log.debug("a stream from %s broke: %s", caller.name, error)
        finally:
            self._door.leave(writer)
            del self._accepted[task]
            writer.close()

    async def _welcome(
        self, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Hello, Certificate | None] | None:
        """Return hello and certificate of a stream that is accepted; None, and count it, when it is refused."""
        if self._closed or not self._door.enter(caller, writer):
            self._counters.refused("hello")
            return None
        try:
            return await self._handshake(caller.name, reader, writer)
        except (FrameError, TimeoutError) as error:
            log.info("refused a stream from %s: %s", caller.name, error or "it said nothing")
            self._counters.refused("hello")
            return None
        finally:
            self._door.finish(writer)

    async def _handshake(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Hello, Certificate | None] | None:
        hello = await read_hello(reader, self._settings.open_timeout_s)
        reason, certificate = self._refusal(name, hello), None
        try:
            certificate = None if reason else self._access.admit(name, hello.credential)
        except AuthorityError as error:
            reason = str(error)
        challenge = self._lives.challenge()
        writer.write(pack_reply(HelloReply(self.local.incarnation, reason)))
        if reason:
            raise FrameError(reason)
        if not await read_confirmation(reader, self._settings.open_timeout_s):
            log.debug("a hello of %s was not confirmed", name)
            return None
        if self._closed or not self._record_answer(ProcessId(name, hello.incarnation), challenge):
            log.debug("a hello of an earlier life of %s was read late", name)
            return None
        return hello, certificate

    def _refusal(self, name: str, hello: Hello) -> str:
        """Return why a hello is refused; empty: it is accepted."""
        if hello.version != PROTOCOL_VERSION:
            return f"protocol version {hello.version}, this process speaks {PROTOCOL_VERSION}"
        if hello.run_id != self._access.run_id:
            return "another run"
        if hello.expected not in (0, self.local.incarnation):
            return "another incarnation: this process was started anew"
        if self._lives.retired(ProcessId(name, hello.incarnation)):
            return "an earlier incarnation than the one that is connected"
        return ""

    async def _read(self, sender: ProcessId, slot: Slot, reader: asyncio.StreamReader, stream: InboundStream) -> None:
        """Deliver the messages of an accepted stream until it ends, and report the loss where it is one."""
        self._register(sender, slot, stream)
        reason = "the connection broke"
        try:
            with closing(AcknowledgingReader(reader, stream.writer, often=slot[0] != "control")) as acknowledging:
                reason = await self._read_frames(sender, slot[0], acknowledging, stream)
        except FrameError as error:
            reason = str(error)
            if not stream.dropped:
                kind = error.kind if isinstance(error, FrameRefusedError) else "message"
                # Damage points to a machine that somebody has to look at.
                log.log(logging.WARNING if kind in DAMAGE else logging.INFO, "from %s: %s", sender, error)
                self._counters.refused(kind)
        except OSError:
            raise
        except Exception as error:  # a bug that a message of this sender has triggered: only its stream is closed
            reason = f"what it sent could not be handled ({type(error).__name__})"
            log.exception("from %s: %s", sender, reason)
            self._counters.refused("message")
        finally:
            self._unregister(sender, slot, stream, reason)

    async def _read_frames(
        self, sender: ProcessId, lane: LaneName, reader: AcknowledgingReader, stream: InboundStream
    ) -> str:
        """Deliver messages; return the reason of the stream's end. Raises FrameError, OSError."""
        role = stream.certificate.role if stream.certificate is not None else None
        sequence = 0
        while True:
            memory = FrameMemory(self._budget, stream.caller)
            limits = self._limits if role == "trainer" else self._peer_limits
            try:
                frame = await read_frame(reader, sequence, limits, self._settings.stall_timeout_s, memory.take)
                if frame is None or stream.dropped:
                    return "closed the connection"
                if frame.is_end:
                    reader.acknowledge()
                    return "said goodbye"
                stream.notified = False
                self._counters.received(lane, frame.header, frame.size_bytes)
                self._on_message(sender, frame.header, frame.bodies, role)
            finally:
                memory.give_back()
            sequence += 1
            if not sequence % FRAMES_AT_ONCE:
                await asyncio.sleep(0)

    def _register(self, sender: ProcessId, slot: Slot, stream: InboundStream) -> None:
        link = self._links.setdefault(sender, LinkStreams())
        replaced = link.inbound.pop(slot, None)
        if replaced is not None:
            replaced.drop()
        link.inbound[slot] = stream

    def _unregister(self, sender: ProcessId, slot: Slot, stream: InboundStream, reason: str) -> None:
        link = self._links.get(sender)
        if link is None or link.inbound.get(slot) is not stream:
            return
        del link.inbound[slot]
        if link.inbound or stream.notified:
            self._remove_if_empty(sender, link)
        else:
            self._lose(sender, link, reason)
