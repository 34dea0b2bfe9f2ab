"""What a reader says of a stream while it reads it: how many bytes of it have arrived, and when."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Protocol

from swarmflow.errors import FrameError

ACKNOWLEDGED_S = 0.02  # after which all that has been read is acknowledged
MANY_BYTES, SOON_S = 1 << 14, 0.002  # so many are acknowledged sooner: a writer on a fast link waits for that at first
ACKNOWLEDGEMENT = struct.Struct("!QQ")  # all bytes of the stream's frames so far, and microseconds of a clock
MICROSECOND_S = 1e-6
UNREAD_BYTES_MAX = 1 << 12  # of acknowledgements, in this process, beside what its daemon has taken


class ByteStream(Protocol):
    """What frames are read from, as an asyncio.StreamReader gives it."""

    async def read(self, n: int) -> bytes:
        """Return at most `n` bytes, as soon as there is any; none: the stream has ended."""
        ...


class AcknowledgingReader:
    """Reads a stream, and acknowledges what it has read, at once or within ACKNOWLEDGED_S.

    often: whether it does; else only when it is asked for.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, often: bool) -> None:
        self._reader, self._writer = reader, writer
        self._often = often
        self._loop = asyncio.get_running_loop()
        self._read_bytes = 0
        self._acknowledged_bytes, self._acknowledged_s = 0, -ACKNOWLEDGED_S  # and when
        self._due: asyncio.TimerHandle | None = None  # the next acknowledgement
        self._due_s = 0.0  # when that is

    async def read(self, n: int) -> bytes:
        """Return at most `n` bytes, as soon as there is any; none: the stream has ended.

        Raises FrameError where the writer does not read what is acknowledged: it would be kept without end.
        """
        if self._writer.transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            raise FrameError("its acknowledgements are not read")
        data = await self._reader.read(n)
        self._read_bytes += len(data)
        if data and self._often:
            many = self._read_bytes - self._acknowledged_bytes >= MANY_BYTES
            due_s = self._acknowledged_s + (SOON_S if many else ACKNOWLEDGED_S)
            if due_s <= self._loop.time():
                self.acknowledge()
            elif self._due is None or due_s < self._due_s:
                self.close()
                self._due, self._due_s = self._loop.call_at(due_s, self.acknowledge), due_s
        return data

    def acknowledge(self) -> None:
        """Acknowledge all that was read."""
        self.close()
        if self._read_bytes > self._acknowledged_bytes:
            self._acknowledged_bytes, self._acknowledged_s = self._read_bytes, self._loop.time()
            # Not the loop's time, which stands still while the loop is busy.
            self._writer.write(ACKNOWLEDGEMENT.pack(self._read_bytes, int(time.monotonic() / MICROSECOND_S)))

    def close(self) -> None:
        """Acknowledge nothing later on."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
