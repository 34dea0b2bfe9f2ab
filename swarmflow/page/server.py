"""Serves the page of a run over HTTP: the files of `static/`, and what a feed tells of the run as JSON.

The server only answers GET, and the page changes nothing. Still, any site that a user visits may have the browser send
requests to it. Therefore the Host header has to name this server (against DNS rebinding), no other origin may read an
answer, and the page's content security policy lets it load nothing from elsewhere (answer.py).

What many viewers ask for at the same time is made once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Final, Protocol

from swarmflow.errors import NetworkError, SwarmflowError
from swarmflow.page.answer import GZIP_BYTES_MIN, JSON, Answer, not_modified, refusal, static_answers
from swarmflow.page.request import HEAD_BYTES_MAX, PageRequest, RefusedError, is_address, parse_request

log = logging.getLogger(__name__)

HEAD_S: Final = 5.0  # a browser sends a request at once; longer, and the connection is closed
SEND_S: Final = 20.0  # in which a viewer has to take CHUNK_BYTES
CONNECTIONS_MAX: Final = 256
SHARED_S: Final = 0.25  # what was made for one viewer is still new for another one
SHARED_MAX: Final = 32  # answers kept
CHUNK_BYTES: Final = 1 << 16  # all that is copied at a time for a viewer who reads slowly
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class Feed(Protocol):
    """What the page shows, as JSON (docs/page.md)."""

    async def run(self, after: int) -> bytes:
        """Return the view, and the events with later numbers."""

    async def steps(self, after: int) -> bytes:
        """Return the steps with later numbers."""

    async def recording(self) -> bytes | None:
        """Return everything that was recorded; None: the run is live."""


class PageServer:
    """Serves one feed to any number of viewers, on the running loop, from `start` until `close`."""

    def __init__(self, feed: Feed, allowed_hosts: Iterable[str] = ()) -> None:
        """allowed_hosts: names, without the port, by which browsers may ask for the page beside this server's own."""
        self._feed = feed
        self._hosts = {*_LOOPBACK, *(host.lower() for host in allowed_hosts)}
        self._any_address = False
        self._static = static_answers()
        self._shared: dict[tuple[str, int], tuple[float, asyncio.Task[Answer]]] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; 0: any free one. Raises NetworkError where the address cannot be used."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES_MAX)
        except (OSError, OverflowError) as error:
            reason = f"cannot serve the page on {host}:{port}: {error}"
            raise NetworkError(f"{reason}; choose another port (0: any free one)") from error
        self._hosts.add(host.lower())
        # Whoever serves the page to others is reached by addresses that this machine may not know, such as a router's.
        self._any_address = not (host.lower() in _LOOPBACK or (is_address(host) and host.startswith("127.")))
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def close(self) -> None:
        """Stop serving, and close the connections of all viewers."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._connections):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        try:
            if len(self._connections) >= CONNECTIONS_MAX:
                await _send(writer, refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many viewers; try again later"))
                return
            self._connections.add(writer)
            while await self._serve_one(reader, writer):
                pass
        except (OSError, EOFError, TimeoutError) as error:
            log.debug("a viewer's connection ended: %r", error)
        except asyncio.CancelledError:
            pass  # the loop ends; asyncio's streams would report a cancelled connection as a fault
        finally:
            self._connections.discard(writer)
            with suppress(OSError):
                writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open for another one."""
        try:
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            text = f"the header has more than {HEAD_BYTES_MAX} bytes"
            await _send(writer, refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text))
            return False
        try:
            request = parse_request(head, self._hosts, any_address=self._any_address)
            answer = await self._find(request)
        except RefusedError as error:
            await _send(writer, refusal(error.status, str(error)))
            return False
        except SwarmflowError as error:
            await _send(writer, refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error)))
            return False
        except Exception as error:  # a mistake in the page must not end the process that trains
            log.exception("the page's request failed")
            text = f"the server failed ({type(error).__name__}); its log has the reason"
            await _send(writer, refusal(HTTPStatus.INTERNAL_SERVER_ERROR, text))
            return False
        await _send(writer, answer, zipped=_worth_zipping(request, answer, writer), keep_alive=request.keep_alive)
        return request.keep_alive

    async def _find(self, request: PageRequest) -> Answer:
        """Return the answer to a request. Raises RefusedError."""
        match request.path:
            case "/api/run":
                return await self._share("run", request.after, self._feed.run)
            case "/api/steps":
                return await self._share("steps", request.after, self._feed.steps)
            case "/api/recording":
                return await self._share("recording", 0, self._record)
        answer = self._static.get(request.path)
        if answer is None:
            raise RefusedError(HTTPStatus.NOT_FOUND, "there is no such page")
        return not_modified(answer) if request.etag == answer.etag else answer

    async def _record(self, after: int) -> bytes:
        body = await self._feed.recording()
        if body is None:
            raise RefusedError(HTTPStatus.NOT_FOUND, "the run is live: nothing is recorded")
        return body

    async def _share(self, name: str, after: int, make: Callable[[int], Awaitable[bytes]]) -> Answer:
        """Return an answer that all have who ask for the same within SHARED_S, made at the first request."""
        now_s = time.monotonic()
        known = self._shared.get((name, after))
        if known is None or now_s - known[0] > SHARED_S:
            self._shared = {key: entry for key, entry in self._shared.items() if now_s - entry[0] <= SHARED_S}
            while len(self._shared) >= SHARED_MAX:
                self._shared.pop(next(iter(self._shared)))
            known = now_s, asyncio.create_task(_json(make, after))
            self._shared[name, after] = known
        # Shielded: a viewer who leaves does not take the answer from the others.
        return await asyncio.shield(known[1])


async def _json(make: Callable[[int], Awaitable[bytes]], after: int) -> Answer:
    return Answer(JSON, await make(after))


def _worth_zipping(request: PageRequest, answer: Answer, writer: asyncio.StreamWriter) -> bool:
    """Return whether an answer is compressed: not for viewers on this machine, where it only costs time."""
    host = str(writer.get_extra_info("peername", ("",))[0])
    return request.gzip and len(answer.body) >= GZIP_BYTES_MIN and host not in _LOOPBACK


async def _send(
    writer: asyncio.StreamWriter, answer: Answer, *, zipped: bool = False, keep_alive: bool = False
) -> None:
    """Send an answer in chunks. Raises TimeoutError where the viewer does not take one in time, and OSError."""
    body = await asyncio.to_thread(answer.packed, zipped=True) if zipped else answer.body
    writer.write(answer.head(len(body), zipped=zipped, keep_alive=keep_alive))
    view = memoryview(body)
    for at in range(0, max(1, len(body)), CHUNK_BYTES):
        writer.write(view[at : at + CHUNK_BYTES])
        async with asyncio.timeout(SEND_S):
            await writer.drain()
