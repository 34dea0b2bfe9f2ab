"""The peers of a swarm as targets of Prometheus, for its HTTP service discovery."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final

import msgspec

from swarmflow.monitoring.swarm_metrics import peers_of

CONTENT_TYPE: Final = "application/json"
_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*\.?")
LABEL_CHARACTERS_MAX: Final = 64
HOST_CHARACTERS_MAX: Final = 253


def targets(view: Mapping[str, Any]) -> bytes:
    """Return the peers of a view (docs/view.md) whose metrics others can read, one target each, as JSON.

    A peer names its address and port itself: what is no host or no port is left out.
    """
    run = str(view.get("run", ""))[:LABEL_CHARACTERS_MAX]
    hosts: dict[str, str] = {}
    found = []
    for _, peers in peers_of(view):
        for peer in peers:
            host, summary = peer.get("address"), peer.get("summary")
            port = summary.get("metrics_port") if isinstance(summary, dict) else None
            if not isinstance(host, str) or type(port) is not int or not 0 < port < 65536:
                continue
            if host not in hosts:
                hosts[host] = _host(host)
            if hosts[host]:
                labels = {"role": "peer", "peer": str(peer.get("id", ""))[:LABEL_CHARACTERS_MAX], "run": run}
                found.append({"targets": [f"{hosts[host]}:{port}"], "labels": labels})
    return msgspec.json.encode(found)


def _host(text: str) -> str:
    """Return a host as it stands in a target; empty where the text is none."""
    if "%" in text:  # what follows an IPv6 address may be any text, and has no meaning on another machine
        return ""
    try:
        return f"[{text}]" if ip_address(text).version == 6 else text
    except ValueError:
        return text if len(text) <= HOST_CHARACTERS_MAX and _NAME.fullmatch(text) else ""
