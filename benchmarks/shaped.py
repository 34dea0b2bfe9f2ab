"""Machines with slow links, all on this one: network namespaces whose links pass so many Mb/s (Linux, root)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

BRIDGE = "swarmflow0"
SUBNET = "10.88.0"
# Ethernet, IP, TCP and its timestamps around what TCP carries in a full packet.
CARRIED = 1448 / 1514


def unavailable() -> str | None:
    """Why links cannot be shaped here; None: they can."""
    if os.geteuid() != 0:
        return "shaping links needs root (network namespaces and tc)"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"shaping links needs {' and '.join(missing)} (Debian's iproute2)" if missing else None


QUEUED_S = 0.5  # what waits for longer is dropped


@contextmanager
def machines(
    names: Sequence[str], mbps: float | Mapping[str, float], between: Callable[[str, str], float] | None = None
) -> Iterator[dict[str, str]]:
    """Namespaces of these names, on one bridge, each with `mbps` up and down. Gives their addresses by name.

    mbps: of all of them, or of each. between: Mb/s from one to another one, beside that; None: no less.

    A `tbf` queue a direction lets so many bits through in a second and drops what waits for more than QUEUED_S.
    """
    try:
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "address", "add", f"{SUBNET}.254/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        addresses: dict[str, str] = {}
        for number, name in enumerate(names):
            addresses[name] = f"{SUBNET}.{number + 1}"
            rate = mbps if isinstance(mbps, float) else mbps[name]
            _join(name, f"swf{number}", f"{addresses[name]}/24", rate)
        if between is not None:
            for number, name in enumerate(names):
                to = {addresses[other]: between(name, other) for other in names if other != name}
                _limit_paths(name, f"swf{number}i", to)
        yield addresses
    finally:
        for number, name in enumerate(names):
            _run("ip", "link", "del", f"swf{number}", check=False)
            _run("ip", "netns", "del", name, check=False)
        _run("ip", "link", "del", BRIDGE, check=False)


def inside(name: str) -> tuple[str, ...]:
    """The command that runs a command on such a machine."""
    return ("ip", "netns", "exec", name)


def _join(name: str, outer: str, address: str, mbps: float) -> None:
    inner = f"{outer}i"
    _run("ip", "netns", "add", name)
    _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
    _run("ip", "link", "set", inner, "netns", name)
    _run("ip", "link", "set", outer, "master", BRIDGE, "up")
    for command in (
        ("ip", "link", "set", "lo", "up"),
        ("ip", "address", "add", address, "dev", inner),
        ("ip", "link", "set", inner, "up"),
        _queue(inner, mbps),
    ):
        _run(*inside(name), *command)
    _run(*_queue(outer, mbps))


def _limit_paths(name: str, link: str, mbps: Mapping[str, float]) -> None:
    """Give a machine a queue to each address, of so many Mb/s, in place of the one to all of them."""
    tc = (*inside(name), "tc")
    _run(*tc, "qdisc", "replace", "dev", link, "root", "handle", "1:", "htb")
    for number, (address, rate) in enumerate(mbps.items(), start=1):
        path, bits = ("dev", link, "parent", "1:"), f"{round(rate * 1000)}kbit"
        _run(*tc, "class", "add", *path, "classid", f"1:{number}", "htb", "rate", bits, "burst", "16kb")
        limit = str(max(1 << 17, round(rate * 1e6 / 8 * QUEUED_S)))
        _run(*tc, "qdisc", "add", "dev", link, "parent", f"1:{number}", "bfifo", "limit", limit)
        match = ("protocol", "ip", "u32", "match", "ip", "dst", f"{address}/32")
        _run(*tc, "filter", "add", *path, *match, "flowid", f"1:{number}")


def _queue(link: str, mbps: float) -> tuple[str, ...]:
    # The burst has to hold what the kernel hands over in one piece, up to 64 KiB.
    rate = f"{round(mbps * 1000)}kbit"
    return ("tc", "qdisc", "add", "dev", link, "root", "tbf", "rate", rate, "burst", "128kb", "latency", "500ms")


def _run(*command: str, check: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
