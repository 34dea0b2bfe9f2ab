"""Which Host headers a server of this machine answers: a web site that reads it by DNS rebinding has another name."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address


def is_own(host: str, names: Collection[str]) -> bool:
    """Return whether a Host header, with or without a port, is an address or one of these names in lower case."""
    name = _without_port(host.strip().lower())
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return name in names
    return True


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and not (host.startswith("[") and host.endswith("]")) else host
