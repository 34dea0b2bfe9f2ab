"""Serves the page of a run over HTTP: the files of `static/`, and what a feed tells of the run as JSON.

Only GET, one request a connection. The page reads and changes nothing, yet any site that a user visits may have the
browser ask for it. So the Host header has to be an address or a name of this server, since DNS rebinding needs a name
of its own; no other origin may read an answer; and the page may load nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from http import HTTPStatus
from importlib.resources import files
from typing import Final, Protocol
from urllib.parse import parse_qs, urlsplit

from swarmflow.errors import NetworkError, SwarmflowError
from swarmflow.hosts import is_own

log = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 8192
HEAD_S: Final = 5.0  # a browser sends its request at once
SEND_S: Final = 30.0
CONNECTIONS_MAX: Final = 128
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_JSON: Final = "application/json"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    f"Content-Security-Policy: {_POLICY}\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n"
)


class Feed(Protocol):
    """What the page shows, as JSON (docs/view.md)."""

    async def run(self, after: int) -> bytes:
        """Return the view, and the events with later numbers."""

    async def steps(self, after: int) -> bytes:
        """Return the steps with later numbers."""

    async def recording(self) -> bytes | None:
        """Return everything that was recorded; None: the run is live."""


class _RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class PageServer:
    """Serves one feed to any number of viewers, on the running loop, from `start` until `close`."""

    def __init__(self, feed: Feed, allowed_hosts: Iterable[str] = ()) -> None:
        """allowed_hosts: names by which browsers may ask, without the port, beside localhost and any address."""
        self._feed = feed
        self._hosts = {"localhost", *(host.lower() for host in allowed_hosts)}
        self._static = _read_static()
        self._server: asyncio.Server | None = None
        self._connections = 0

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; 0: any free one. Raises NetworkError where the address cannot be used."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES_MAX)
        except (OSError, OverflowError, UnicodeError) as error:
            reason = f"cannot serve the page on {host}:{port}: {error}"
            raise NetworkError(f"{reason}; choose another port (0: any free one)") from error
        self._hosts.add(host.lower())
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            async with asyncio.timeout(HEAD_S):
                head = await _read_head(reader)
            async with asyncio.timeout(SEND_S):
                writer.write(await self._answer(head))
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError) as error:
            log.debug("a request for the page was none: %r", error)
        finally:
            self._connections -= 1
            writer.transport.abort()  # drops an answer that is not read, which would be kept otherwise

    async def _answer(self, head: bytes | None) -> bytes:
        try:
            if self._connections > CONNECTIONS_MAX:
                raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too many viewers at a time; try again")
            if head is None:
                raise _RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too long")
            target = self._checked_target(head.decode("latin-1"))
            kind, body = await self._find(target)
        except _RefusedError as error:
            return _response(error.status, "text/plain; charset=utf-8", f"{error}\n".encode())
        except SwarmflowError as error:
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", f"{error}\n".encode())
        except Exception as error:  # a mistake in what tells of a run must not end the run
            log.exception("the page could not be told of the run")
            text = f"the run could not be told ({type(error).__name__})\n"
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text.encode())
        return _response(HTTPStatus.OK, kind, body)

    def _checked_target(self, head: str) -> str:
        """Return the target of a request. Raises _RefusedError unless it is a GET to this server."""
        line, *fields = head.split("\r\n")
        parts = line.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "this is no HTTP request")
        if parts[0] != "GET":
            raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "the page is only read: use GET")
        named = [field.partition(":")[2] for field in fields if field.lower().startswith("host:")]
        if len(named) != 1 or not is_own(named[0], self._hosts):
            raise _RefusedError(HTTPStatus.MISDIRECTED_REQUEST, "the Host header names another server")
        return parts[1]

    async def _find(self, target: str) -> tuple[str, bytes]:
        """Return the type and the body of an answer."""
        try:
            url = urlsplit(target)
        except ValueError:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "the address cannot be read") from None
        match url.path:
            case "/api/run":
                return _JSON, await self._feed.run(_after(url.query))
            case "/api/steps":
                return _JSON, await self._feed.steps(_after(url.query))
            case "/api/recording":
                body = await self._feed.recording()
                if body is None:
                    raise _RefusedError(HTTPStatus.NOT_FOUND, "the run is live: nothing is recorded")
                return _JSON, body
        name = "index.html" if url.path == "/" else url.path.removeprefix("/")
        if name not in self._static:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "there is no such page")
        return _TYPES[name.rsplit(".", 1)[-1]], self._static[name]


async def _read_head(reader: asyncio.StreamReader) -> bytes | None:
    """Return the head of a request; None: it is longer than HEAD_BYTES_MAX."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return None


def _read_static() -> dict[str, bytes]:
    """Return the files of the page by name: no path of a request ever reaches the file system."""
    folder = files("swarmflow.page") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rsplit(".", 1)[-1] in _TYPES}


def _after(query: str) -> int:
    """Return the number in `after=N`, 0 where there is none. Raises _RefusedError."""
    try:
        return int(parse_qs(query).get("after", ["0"])[0])
    except ValueError:
        raise _RefusedError(HTTPStatus.BAD_REQUEST, "after=N wants a number") from None


def _response(status: HTTPStatus, kind: str, body: bytes) -> bytes:
    length = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{length}{_HEADERS}\r\n".encode() + body
