"""One outgoing stream: a bounded queue, the task that opens the stream and writes it out, and how it ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from swarmflow.errors import FrameError, NetworkError
from swarmflow.runtime.transport.acknowledging import ACKNOWLEDGEMENT, MICROSECOND_S
from swarmflow.runtime.transport.delay_window import DelayWindow
from swarmflow.runtime.transport.frames import FrameLimits, check_limits, frame_pieces, pack_end, pack_front
from swarmflow.runtime.transport.hello import CONFIRMATION, Hello, pack_hello, read_reply
from swarmflow.runtime.transport.precedence import BACKGROUND_BYTES, Precedence
from swarmflow.runtime.transport.upload_limit import UploadLimit

Buffer = bytes | bytearray | memoryview
Body = Buffer | Callable[[], Buffer]  # a function makes its buffer when the message is written
OpenStream = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
OnWelcome = Callable[[int], bool]

WRITE_BYTES = 1 << 18  # longest piece that is written at once
ROOM = 8  # a piece is at least as long as so much of the window, unless its frame ends


class LinkCounters(Protocol):
    """The counters of the links.

    lane: its name; kind: a metric label with few values; size_bytes: of the whole frame.
    """

    def sent(self, lane: str, header: bytes, size_bytes: int) -> None:
        """Count a frame that was written to the network."""

    def received(self, lane: str, header: bytes, size_bytes: int) -> None:
        """Count a whole frame that has arrived, before its header is checked."""

    def refused(self, kind: str) -> None:
        """Count a frame or stream from the network that was refused."""

    def queued(self, lane: str, change_bytes: int) -> None:
        """Record a change of the bytes that wait to be sent."""


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """Limits of one lane."""

    open_timeout_s: float = 10.0  # for connecting, opening, and the reply, each
    stall_timeout_s: float = 30.0  # how long a write, or a frame that has begun to arrive, may make no progress
    queue_bytes_max: int = 1 << 29  # without bodies that are made when they are sent
    queue_frames_max: int = 16384


def nothing() -> None:
    """Do nothing, once a message is done."""


class LinkBrokenError(Exception):
    """The stream is broken; the text is the reason."""


@dataclass(frozen=True, slots=True)
class _Message:
    header: bytes
    bodies: tuple[Body, ...]
    size_bytes: int
    done: Callable[[], None]


class OutboundLane:
    """Writes messages to one process on one lane, in order, from one task. No method waits.

    on_welcome: called with the incarnation that answered; returns whether it is the process's current one. on_broken:
    called with the reason when the stream cannot be opened or breaks. upload: the limit that all lanes of the process
    share; messages of the control lane count, and do not wait. precedence: of the lanes of the process. Of other lanes
    no more is on its way than passes the links soon (`DelayWindow`).
    """

    def __init__(
        self,
        open_stream: OpenStream,
        hello: Hello,
        *,
        limits: FrameLimits,
        settings: LaneSettings,
        counters: LinkCounters,
        on_broken: Callable[[str], None],
        on_welcome: OnWelcome,
        precedence: Precedence,
        upload: UploadLimit | None = None,
    ) -> None:
        self._on_welcome = on_welcome
        self._open_stream = open_stream
        self._hello = hello
        self._limits = limits
        self._settings = settings
        self._counters = counters
        self._on_broken = on_broken
        self._upload = upload
        self._precedence = precedence
        longest = BACKGROUND_BYTES if hello.lane == "background" else WRITE_BYTES
        self._piece_bytes = longest if upload is None else min(longest, upload.piece_bytes)
        self._queue: deque[_Message] = deque()
        self._queue_bytes = 0  # of the queue and of the message that is being written
        self._wake = asyncio.Event()
        self._finishing = False
        self._sequence = 0  # number of the next frame
        self._window = None if hello.lane == "control" else DelayWindow()
        self._room = asyncio.Event()  # set by each acknowledgement
        self._written_bytes = 0  # of all frames
        self._whole_bytes = -1  # the same, with the frame that ends the stream, once that is to be written
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def fit(self, limits: FrameLimits, settings: LaneSettings) -> None:
        """Set other limits."""
        self._limits, self._settings = limits, settings

    def push(self, header: bytes, bodies: Sequence[Body], done: Callable[[], None] = nothing) -> bool:
        """Queue a message, and return whether there was room. Raises ValueError when it is over a frame's limits.

        done: called when a message that was queued is written, or dropped.
        """
        if not header:
            raise ValueError("a message needs a header")
        sizes = [0 if callable(body) else memoryview(body).nbytes for body in bodies]
        check_limits(len(header), sizes, self._limits)
        message = _Message(header, tuple(bodies), len(header) + sum(sizes), done)
        if (
            len(self._queue) >= self._settings.queue_frames_max
            or self._queue_bytes + message.size_bytes > self._settings.queue_bytes_max
        ):
            return False
        self._queue.append(message)
        self._change_queue_bytes(message.size_bytes)
        self._wake.set()
        return True

    def finish(self) -> asyncio.Task[None]:
        """Send the queue and end the stream; return the task, which is done when the other side has read everything."""
        self._finishing = True
        self._wake.set()
        return self._task

    def abort(self) -> asyncio.Task[None]:
        """Drop the queue and close the stream; return the task to wait for."""
        self._task.cancel()
        return self._task

    def _change_queue_bytes(self, change_bytes: int) -> None:
        before, self._queue_bytes = self._queue_bytes, self._queue_bytes + change_bytes
        if bool(before) != bool(self._queue_bytes):
            (self._precedence.begin if self._queue_bytes else self._precedence.end)(self._hello.lane)
        self._counters.queued(self._hello.lane, change_bytes)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Drop what is still queued. Any exception of the task is a bug, and breaks the link too."""
        dropped = list(self._queue)
        self._queue.clear()
        self._change_queue_bytes(-self._queue_bytes)
        for message in dropped:
            message.done()
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        self._on_broken(f"its messages could not be sent: {error!r}")
        context = {"message": "a lane's writer failed", "exception": error, "task": task}
        asyncio.get_running_loop().call_exception_handler(context)

    async def _run(self) -> None:
        try:
            reader, writer = await self._open()
            try:
                await self._transmit(reader, writer)
            except BaseException:
                writer.transport.abort()
                raise
            writer.close()
        except LinkBrokenError as broken:
            self._on_broken(str(broken))

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open the stream and shake hands. Raises LinkBrokenError."""
        try:
            reader, writer = await self._open_stream()
        except NetworkError as error:
            raise LinkBrokenError(f"cannot be reached: {error}") from None
        accepted = False
        try:
            writer.write(pack_hello(self._hello))
            reply = await read_reply(reader, self._settings.open_timeout_s)
            if reply.reason:
                raise LinkBrokenError(f"refused the connection: {reply.reason}")
            if not self._on_welcome(reply.incarnation):
                raise LinkBrokenError("a life of it that has been replaced answered")
            writer.write(CONFIRMATION)
            accepted = True
        except TimeoutError:
            raise LinkBrokenError(
                f"accepted a stream and said nothing for {self._settings.open_timeout_s:g} s"
            ) from None
        except (OSError, FrameError) as error:
            raise LinkBrokenError(f"broke the connection while it was opened: {error}") from None
        finally:
            if not accepted:
                writer.transport.abort()
        return reader, writer

    async def _transmit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Write messages until the other side has acknowledged the end of the stream. Raises LinkBrokenError."""
        reasons: list[str] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(reader))
                group.create_task(self._write_all(writer))
        except* LinkBrokenError as broken:
            reasons = [str(error) for error in broken.exceptions]
        if reasons:
            raise LinkBrokenError(reasons[0])

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        """Take acknowledgements, all that the other side ever writes, to that of the end, or raise LinkBrokenError."""
        read_bytes = 0
        while read_bytes != self._whole_bytes:
            try:
                read_bytes, at = ACKNOWLEDGEMENT.unpack(await reader.readexactly(ACKNOWLEDGEMENT.size))
                if read_bytes > self._written_bytes:
                    raise ValueError(f"{read_bytes} bytes of {self._written_bytes}")
                if self._window is not None:
                    self._window.acknowledged(read_bytes, at * MICROSECOND_S)
            except asyncio.IncompleteReadError:
                raise LinkBrokenError("closed the connection") from None
            except ValueError as error:
                raise LinkBrokenError(f"acknowledged what it was not sent ({error})") from None
            except OSError as error:
                raise LinkBrokenError(f"the connection broke: {error}") from None
            self._room.set()

    async def _write_all(self, writer: asyncio.StreamWriter) -> None:
        while not (self._finishing and not self._queue):
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
                continue
            message = self._queue.popleft()
            try:
                await self._write_frame(writer, message)
            finally:
                self._change_queue_bytes(-message.size_bytes)
                message.done()
        end = pack_end(self._sequence)
        self._whole_bytes = self._written_bytes + len(end)
        await self._write_piece(writer, end)

    async def _write_frame(self, writer: asyncio.StreamWriter, message: _Message) -> None:
        # A function packs a piece of an all-reduce, about 0.4 ms: nothing else should wait for that.
        made = [await asyncio.to_thread(body) if callable(body) else body for body in message.bodies]
        bodies = [memoryview(body).cast("B") for body in made]
        front = pack_front(self._sequence, message.header, [len(body) for body in bodies], self._limits)
        self._sequence += 1
        size_bytes = 0
        for piece in frame_pieces(front, bodies, self._piece_bytes):
            await self._write_piece(writer, piece)
            size_bytes += len(piece)
        self._counters.sent(self._hello.lane, message.header, size_bytes)

    async def _write_piece(self, writer: asyncio.StreamWriter, piece: Buffer) -> None:
        rest = memoryview(piece)
        while rest:
            size_bytes = await self._take_room(len(rest))
            await self._write_part(writer, rest[:size_bytes])
            rest = rest[size_bytes:]

    async def _take_room(self, wanted_bytes: int) -> int:
        """Wait until some of these bytes may be on their way; return how many. Raises LinkBrokenError."""
        window = self._window
        if window is None:
            return wanted_bytes
        while window.room_bytes < min(wanted_bytes, window.window_bytes // ROOM):
            window.full()
            self._room.clear()
            try:
                async with asyncio.timeout(self._settings.stall_timeout_s):
                    await self._room.wait()
            except TimeoutError:
                raise self._stalled() from None
        return min(wanted_bytes, window.room_bytes)

    async def _write_part(self, writer: asyncio.StreamWriter, piece: memoryview) -> None:
        await self._precedence.wait(self._hello.lane)
        if self._upload is not None:
            if self._hello.lane == "control":
                self._upload.count(len(piece))
            else:
                with self._precedence.limited(self._hello.lane):
                    await self._upload.wait(len(piece))
        self._written_bytes += len(piece)
        if self._window is not None:
            self._window.wrote(len(piece))
        try:
            writer.write(piece)
            async with asyncio.timeout(self._settings.stall_timeout_s):
                await writer.drain()
            self._precedence.wrote(self._hello.lane, len(piece))
        except TimeoutError:
            raise self._stalled() from None
        except OSError as error:
            raise LinkBrokenError(f"the connection broke: {error}") from None

    def _stalled(self) -> LinkBrokenError:
        return LinkBrokenError(f"took no bytes for {self._settings.stall_timeout_s:g} s")
