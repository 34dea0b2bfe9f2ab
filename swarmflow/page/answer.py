"""The HTTP answers of the page's server: a body with its type, compressed once for all viewers that want it so."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.resources import files
from typing import Final

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
GZIP_BYTES_MIN: Final = 1400  # what fits into one packet is not worth it
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAME_FOR_ALL: Final = (
    f"Content-Security-Policy: {_POLICY}\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Vary: Accept-Encoding\r\n"
)


@dataclass(slots=True)
class Answer:
    """What is sent for a request. One answer serves all viewers that ask for the same."""

    kind: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    etag: str = ""  # empty: no browser may keep a copy
    _zipped: bytes | None = field(init=False, default=None)

    def packed(self, *, zipped: bool) -> bytes:
        """Return the body as it is sent."""
        if not zipped:
            return self.body
        if self._zipped is None:
            self._zipped = gzip.compress(self.body, compresslevel=1, mtime=0)
        return self._zipped

    def head(self, length: int, *, zipped: bool, keep_alive: bool) -> bytes:
        """Return the status line and the header. length: of the body as it is sent, in bytes."""
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}", f"Content-Length: {length}"]
        if self.status is not HTTPStatus.NOT_MODIFIED:
            lines.append(f"Content-Type: {self.kind}")
        if self.status is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET")
        if zipped:
            lines.append("Content-Encoding: gzip")
        lines += [f"ETag: {self.etag}", "Cache-Control: no-cache"] if self.etag else ["Cache-Control: no-store"]
        lines.append(f"Connection: {'keep-alive' if keep_alive else 'close'}")
        return ("\r\n".join(lines) + "\r\n" + _SAME_FOR_ALL + "\r\n").encode()


def refusal(status: HTTPStatus, text: str) -> Answer:
    """Return an answer of one line of text."""
    return Answer(TEXT, f"{text}\n".encode(), status)


def not_modified(answer: Answer) -> Answer:
    """Return that the copy of an answer that the browser has is the newest."""
    return Answer(answer.kind, b"", HTTPStatus.NOT_MODIFIED, answer.etag)


def static_answers() -> dict[str, Answer]:
    """Return the files of the page by their path in a request, read once: no request reaches the file system."""
    answers: dict[str, Answer] = {}
    for file in (files("swarmflow.page") / "static").iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            answers["/" if file.name == "index.html" else f"/{file.name}"] = Answer(kind, body, etag=etag)
    return answers
