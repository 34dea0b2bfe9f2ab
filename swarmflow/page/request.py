"""The HTTP requests that the page's server answers: a GET without a body, for this very server."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qs, urlsplit

HEAD_BYTES_MAX: Final = 8192
FIELDS_MAX: Final = 64
_REQUEST_LINE: Final = re.compile(r"([A-Z]{1,16}) (/[\x21-\x7e]*) HTTP/1\.([01])")
_FIELD: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_ONCE: Final = ("host", "content-length", "transfer-encoding")
_AFTER: Final = re.compile(r"\d{1,15}")


class RefusedError(Exception):
    """A request that is answered with an error status and one line of text."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request, checked."""

    path: str
    after: int = 0  # `?after=N`: what the viewer has already
    etag: str = ""  # of the copy that the browser has cached
    gzip: bool = False
    keep_alive: bool = True


def parse_request(head: bytes, hosts: Collection[str], *, any_address: bool) -> PageRequest:
    """Return the request with this head, which ends with an empty line.

    hosts: names and addresses of this server, in lower case. any_address: every numeric address in the Host header is
    taken for this server's. Raises RefusedError.
    """
    line, *rows = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request")
    method, target, minor = found.groups()
    if method != "GET":
        raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "the page can only be read: use GET")
    fields = _fields(rows)
    if "transfer-encoding" in fields or fields.get("content-length", "0") != "0":
        raise RefusedError(HTTPStatus.BAD_REQUEST, "a GET to this server has no body")
    if not _is_own(host_of(fields.get("host", "")), hosts, any_address=any_address):
        raise RefusedError(
            HTTPStatus.MISDIRECTED_REQUEST, "the Host header names another server; --allow-host NAME allows a name"
        )
    path, after = _target(target)
    return PageRequest(
        path,
        after,
        etag=fields.get("if-none-match", ""),
        gzip="gzip" in re.split(r"[ ,;]+", fields.get("accept-encoding", "")),
        keep_alive=minor == "1" and "close" not in fields.get("connection", "").lower(),
    )


def _fields(rows: list[str]) -> dict[str, str]:
    """Return the header fields by name, in lower case, those that occur twice joined. Raises RefusedError."""
    if len(rows) > FIELDS_MAX:
        raise RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {FIELDS_MAX} header fields")
    fields: dict[str, str] = {}
    for row in rows:
        found = _FIELD.fullmatch(row)
        name = "" if found is None else found[1].lower()
        if found is None or (name in fields and name in _ONCE):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "a header field is malformed or occurs twice")
        fields[name] = f"{fields[name]}, {found[2]}" if name in fields else found[2]
    return fields


def host_of(field: str) -> str:
    """Return the host of a Host header, in lower case, without port and brackets; empty: it has none."""
    found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[0-9a-z._-]+)(:\d{1,5})?", field.lower())
    return "" if found is None else found[1].strip("[]")


def _is_own(host: str, hosts: Collection[str], *, any_address: bool) -> bool:
    """Return whether a host is this server.

    A site of somebody else that resolves to this machine (DNS rebinding) has a name of its own, never an address.
    """
    return host in hosts or (any_address and is_address(host))


def is_address(host: str) -> bool:
    """Return whether a host is a numeric address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _target(target: str) -> tuple[str, int]:
    """Return the path and the number of `after=N`, 0 where it is missing. Raises RefusedError."""
    try:
        url = urlsplit(target)
        values = parse_qs(url.query, max_num_fields=4).get("after", ["0"])
    except ValueError:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "the address cannot be read") from None
    if len(values) != 1 or not _AFTER.fullmatch(values[0]):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "after=N takes one whole number")
    return url.path, int(values[0])
