"""The HTTP server of a process' metrics: `/metrics`, further pages that a role adds, and a token that protects them."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from swarmflow.errors import ConfigError, NetworkError, SwarmflowError
from swarmflow.hosts import is_own

log = logging.getLogger(__name__)

TOKEN_VARIABLE: Final = "SWARMFLOW_METRICS_TOKEN"
TOKEN_BYTES_MAX: Final = 1024
CLIENT_S: Final = 10.0  # a client that sends or reads nothing for so long is disconnected
REQUEST_S: Final = 30.0  # as is one whose whole request takes longer
CONNECTIONS_MAX: Final = 64  # each takes a thread; more are closed
PLAIN: Final = "text/plain; charset=utf-8"

Environment = dict[str, Any]
StartResponse = Callable[..., Any]


@dataclass(frozen=True)
class Page:
    """What a path answers with."""

    content_type: str
    body: bytes


MakePage = Callable[[], Page]
"""Makes a page, in a thread of the server. Raises SwarmflowError where there is nothing to show at the moment."""


def read_token(path: Path | None) -> str | None:
    """Return the token that protects the metrics: of a file, else of SWARMFLOW_METRICS_TOKEN; None: they are open.

    Raises ConfigError where there is a token that cannot be used.
    """
    if path is None:
        return _checked(os.environ[TOKEN_VARIABLE], TOKEN_VARIABLE) if TOKEN_VARIABLE in os.environ else None
    try:
        with path.open("rb") as file:
            data = file.read(TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"--metrics-token {path}: cannot be read ({error.strerror})") from None
    return _checked(data.decode("ascii", "replace"), f"--metrics-token {path}")


def _checked(token: str, where: str) -> str:
    token = token.strip()
    if not (token and token.isascii() and token.isprintable() and " " not in token and len(token) <= TOKEN_BYTES_MAX):
        raise ConfigError(f"{where}: a token is one line of 1 to {TOKEN_BYTES_MAX} ASCII characters without spaces")
    return token


def may_read(authorization: str, token: str) -> bool:
    """Whether an Authorization header has the token: as `Bearer`, or as the password of any `Basic` user."""
    scheme, _, given = authorization.strip().partition(" ")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode("latin-1").partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.strip().encode(), token.encode())


class MetricsServer:
    """Serves the metrics of a registry, and the pages added to it, from daemon threads until `close`."""

    def __init__(self, registry: CollectorRegistry, pages: dict[str, MakePage]) -> None:
        """pages: by path; the owner may add and remove some at any time."""
        self._metrics = make_wsgi_app(registry)
        self._pages = pages
        self._token: str | None = None
        self._names: frozenset[str] | None = None  # by which clients may ask; None: by any
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self, port: int, host: str, token: str | None) -> int:
        """Serve on `host`:`port` (0: any free port), and return the port in use. token: None: everybody may read.

        Where neither a token nor the network keeps others out, no web site that a user visits may have the browser ask
        under a name of its own. Raises NetworkError where the address is taken or cannot be used.
        """
        self._token = token
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = found[0]
            local = token is None and ip_address(str(address[0])).is_loopback
            self._names = frozenset(("localhost", host.lower())) if local else None
            server_class: type[WSGIServer] = _Server6 if family is socket.AF_INET6 else _Server
            server = make_server(str(address[0]), port, self._answer, server_class, _Handler)
        except (OSError, OverflowError, UnicodeError) as error:
            raise NetworkError(
                f"cannot serve metrics on {host}:{port}: {error}; choose another --metrics-port (0: any free one)"
            ) from error
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        return server.server_port

    def close(self) -> None:
        """Stop serving and free the port, if the server serves."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        self._server = self._thread = None
        server.shutdown()
        server.server_close()
        thread.join()

    def _answer(self, environ: Environment, start_response: StartResponse) -> Iterable[bytes]:
        if self._names is not None and not is_own(environ.get("HTTP_HOST", ""), self._names):
            return _plain(start_response, "421 Misdirected Request", "the Host header names another server\n")
        if self._token is not None and not may_read(environ.get("HTTP_AUTHORIZATION", ""), self._token):
            challenge = [("WWW-Authenticate", 'Bearer realm="metrics", Basic realm="metrics"')]
            return _plain(start_response, "401 Unauthorized", "the token of --metrics-token is needed\n", challenge)
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            answer: Iterable[bytes] = self._metrics(environ, start_response)
            return answer
        make = self._pages.get(path)
        if make is None:
            paths = " ".join(sorted(("/metrics", *self._pages)))
            return _plain(start_response, "404 Not Found", f"there are {paths}\n")
        if environ.get("REQUEST_METHOD") != "GET":
            return _plain(start_response, "405 Method Not Allowed", "only GET\n", [("Allow", "GET")])
        try:
            page = make()
        except SwarmflowError as error:
            return _plain(start_response, "503 Service Unavailable", f"{error}\n")
        except Exception as error:  # a mistake in a page must not print a traceback at each scrape
            log.debug("the page %s failed", path, exc_info=True)
            return _plain(start_response, "500 Internal Server Error", f"it failed ({type(error).__name__})\n")
        start_response("200 OK", [("Content-Type", page.content_type), ("Content-Length", str(len(page.body)))])
        return [page.body]


def _plain(
    start_response: StartResponse, status: str, text: str, headers: Iterable[tuple[str, str]] = ()
) -> list[bytes]:
    body = text.encode()
    start_response(status, [("Content-Type", PLAIN), ("Content-Length", str(len(body))), *headers])
    return [body]


class _Server(ThreadingMixIn, WSGIServer):
    """Serves a few clients at a time, each for a while."""

    daemon_threads = True
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, *args: Any) -> None:  # noqa: ANN401
        super().__init__(*args)
        self._until_s: dict[Any, float] = {}  # by the socket of a client

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Answer a client in a thread of its own, unless there are too many."""
        if len(self._until_s) >= CONNECTIONS_MAX:
            self.shutdown_request(request)
            return
        self._until_s[request] = time.monotonic() + REQUEST_S
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        """Close the connection of a client."""
        self._until_s.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the requests that take too long, twice a second: what their threads wait for comes to an end."""
        now_s = time.monotonic()
        for request in [request for request, until_s in list(self._until_s.items()) if now_s > until_s]:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Ignores clients that disconnect early, or speak another protocol than HTTP."""
        log.debug("a question for metrics from %s failed", client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_S

    def log_message(self, format: str, *args: object) -> None:
        """Log no request."""
