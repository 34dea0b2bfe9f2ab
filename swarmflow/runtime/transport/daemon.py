"""Runs libp2p's daemon p2pd in a session of its own, watches it, and sends it requests over its control socket.

hivemind's `P2P.create` starts it too, but in the caller's process group, where Ctrl-C would kill the daemon before its
process has drained; its requests leave their socket open when they fail; and hivemind takes seconds to import.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import stat
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from swarmflow.errors import NetworkError
from swarmflow.runtime.transport import p2pd

log = logging.getLogger(__name__)

IDLE_TIMEOUT_S = 30  # p2pd ends when no client opens a persistent connection within this time
# GOGC of p2pd, whose heap otherwise grows to twice its live data before a collection, and keeps most of that size. With
# 25 MB of live data a daemon grew to 82 MB over forty deaths of another process, with this to 69 MB, as fast.
GOGC_PERCENT = "50"
# Written to its stdin, because an option of its command line can switch the relay on, but not off.
_CONFIGURATION = b'{"Relay": {"Enabled": false}}'
OUTPUT_LINE_BYTES_MAX = 1 << 20
STALE_SOCKET_AGE_S = 60.0
_NAME = "Peer ID:"  # in its output, before its libp2p name
TERMINATE_TIMEOUT_S = 3.0


class Daemon:
    """One running p2pd."""

    def __init__(self, process: asyncio.subprocess.Process, socket_path: Path, stop_s: float) -> None:
        self.socket_path = socket_path  # its control socket
        self.name = ""  # of this process in the network, once it listens
        self._stop_s = stop_s  # from SIGTERM to SIGKILL; 0: SIGKILL at once
        self._process = process
        self._last_lines: deque[str] = deque(maxlen=20)
        self._ready = asyncio.Event()
        self._output = asyncio.create_task(self._read_output())

    @classmethod
    async def launch(
        cls, options: Mapping[str, str | int], startup_timeout_s: float, stop_s: float = TERMINATE_TIMEOUT_S
    ) -> Daemon:
        """Start p2pd with these command-line options and wait until it listens.

        Without "relay": 1 it relays no streams, and its own streams use no relay. stop_s: the time that `stop` gives it
        to end before it is killed; 0: none. Raises NetworkError, with p2pd's last line of output, when it does not
        start in time.
        """
        remove_stale_sockets()
        socket_path = Path(tempfile.gettempdir()) / f"hivemind-p2pd-{secrets.token_urlsafe(8)}.sock"
        arguments = [f"-{name}={value}" for name, value in options.items()]
        arguments += [f"-listen=/unix{socket_path}", f"-idleTimeout={IDLE_TIMEOUT_S}s", "-i"]
        environment = {"GOLOG_LOG_LEVEL": "error", "GOGC": GOGC_PERCENT, **os.environ}
        program = p2pd.program()
        try:
            process = await asyncio.create_subprocess_exec(
                str(program),
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                limit=OUTPUT_LINE_BYTES_MAX,
            )
        except OSError as error:
            raise NetworkError(f"cannot run hivemind's p2pd ({program}): {error.strerror}") from None
        assert process.stdin is not None
        if not process.stdin.is_closing():  # a program that has ended already is told of below
            process.stdin.write(_CONFIGURATION)
            process.stdin.close()
        daemon = cls(process, socket_path, stop_s)
        await daemon._wait_until_ready(startup_timeout_s)
        return daemon

    async def _wait_until_ready(self, timeout_s: float) -> None:
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait((ready, self._output), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            timed_out = not self._output.done()
            if not self._ready.is_set():
                await self.stop()
        if not self._ready.is_set():
            panics = [line for line in self._last_lines if line.startswith("panic:")]
            last_line = (panics or list(self._last_lines) or ["it said nothing"])[-1]
            how = f"did not start within {timeout_s:g} s" if timed_out else "ended at its start"
            raise NetworkError(f"the network daemon p2pd {how}: {last_line}")

    async def _read_output(self) -> None:
        if self._process.stdout is None:
            raise RuntimeError("p2pd was started without a pipe")
        async for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip()
            log.debug("p2pd: %s", text)
            if text:
                self._last_lines.append(text)
            if text.startswith(_NAME):
                self.name = text.removeprefix(_NAME).strip()
                self._ready.set()

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    async def died(self) -> str:
        """Wait until the process has ended, and return the reason as text."""
        code = await self._process.wait()
        return f"the network daemon p2pd ended with code {code}"

    async def stop(self) -> None:
        """End the process and remove its socket."""
        if self._process.returncode is None:
            if self._stop_s > 0:
                self._process.terminate()
            try:
                async with asyncio.timeout(self._stop_s):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        await self._output
        self.socket_path.unlink(missing_ok=True)

    async def connect(self, name: str, addresses: Sequence[bytes], timeout_s: float) -> None:
        """Connect to a process by its addresses, unless it is connected already. Raises NetworkError."""
        _, writer = await self._request(p2pd.connect_request(name, addresses, timeout_s), timeout_s)
        writer.close()

    async def open_stream(
        self, name: str, protocol: str, timeout_s: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a stream to a process that serves this protocol. Raises NetworkError."""
        return await self._request(p2pd.stream_request(name, protocol, timeout_s), timeout_s)

    async def _request(self, request: bytes, timeout_s: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request on a new connection, and return that once p2pd has granted it. Raises NetworkError."""
        writer = None
        succeeded = False
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_unix_connection(self.socket_path)
                writer.write(request)
                await p2pd.read_response(reader)
            succeeded = True
        except TimeoutError:
            raise NetworkError(f"no answer within {timeout_s:g} s") from None
        except (OSError, EOFError) as error:
            raise NetworkError(f"the network daemon p2pd does not answer ({error})") from None
        finally:
            if writer is not None and not succeeded:
                writer.transport.abort()
        return reader, writer


def remove_stale_sockets() -> None:
    """Remove the sockets that killed processes of this user have left in the temporary folder."""
    for path in Path(tempfile.gettempdir()).glob("hivemind-p2p*.sock"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        young = time.time() - status.st_mtime < STALE_SOCKET_AGE_S
        if young or status.st_uid != os.getuid() or not stat.S_ISSOCK(status.st_mode):
            continue
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:  # in use, or removed already
                continue
