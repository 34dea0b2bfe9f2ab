"""Several devices of one host: their names, and the command line of the peer of each."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from click.core import ParameterSource

from swarmflow.errors import ConfigError
from swarmflow.quantities import parse_upload
from swarmflow.system import usable_cores

ALL = "all"
OF_HOST = "--of-host"
THREADS = "OMP_NUM_THREADS"
_COUNT = "import torch; print('\\ndevices', torch.cuda.device_count())"
_COUNT_S = 120.0
_PORTS = re.compile(r"(/(?:tcp|udp)/)(\d{1,5})(?=/|$)")
_OWN = ("device", "invite", "state_dir", "listen", "announce", "metrics_port", "upload_limit", "log_format", "of_host")


@dataclass(frozen=True)
class DevicePeer:
    """The process of one device."""

    label: str  # by which the device is named in the log
    arguments: tuple[str, ...]  # of `swarmflow`
    environment: Mapping[str, str]


def several(device: str) -> bool:
    """Return whether `--device` names the devices of a host, not one device."""
    return device == ALL or "," in device


def device_names(device: str) -> list[str]:
    """Return the names in `--device`. Raises ConfigError where one is missing, or `all` and there is no CUDA device."""
    if device != ALL:
        names = device.split(",")
        if not all(names) or ALL in names or "auto" in names:
            raise ConfigError(f"--device {device}: name each device, as in cuda:0,cuda:1; or give all")
        return names
    # In a process of its own: what torch takes while it is loaded is not held by the parent of all peers.
    try:
        counted = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, timeout=_COUNT_S)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--device all: torch is not loaded within {_COUNT_S:g} s; name each device") from None
    # Libraries may print lines of their own.
    answer = re.search(r"^devices (\d+)$", counted.stdout.decode(errors="replace"), re.MULTILINE)
    if counted.returncode or answer is None:
        reason = counted.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ConfigError(f"--device all: torch cannot be loaded: {' '.join(reason)}")
    count = int(answer[1])
    if not count:
        raise ConfigError("--device all: this machine has no CUDA device that torch can use; give --device cpu")
    return [f"cuda:{number}" for number in range(count)]


def device_peers(
    names: Sequence[str], context: click.Context, environment: Mapping[str, str], meeting: Path
) -> list[DevicePeer]:
    """Return the process of each device, in order.

    context: of the command `peer`, whose options they share. meeting: the folder in which they find each other. Each
    device has its own folder in --state-dir, and of ports that are given those that follow; the devices share
    --upload-limit and the cores. Raises ConfigError.
    """
    options = context.params
    shared = {**environment}
    if options["invite"] is not None:
        shared["SWARMFLOW_JOIN"] = str(options["invite"])
    shared.setdefault(THREADS, str(max(1, usable_cores() // len(names))))
    given = _given(context)
    return [
        DevicePeer(label, ("peer", *given, OF_HOST, str(meeting), *_of_device(options, names, number)), shared)
        for number, label in enumerate(_labels(names))
    ]


def _of_device(options: Mapping[str, object], names: Sequence[str], number: int) -> list[str]:
    """Return the options of one device that differ from those of others."""
    arguments = ["--device", names[number], "--listen", at_port(str(options["listen"]), number)]
    if (folder := options["state_dir"]) is not None:
        arguments += ["--state-dir", str(Path(str(folder)) / str(number))]
    announced = options["announce"]
    assert isinstance(announced, tuple)
    for text in announced:
        arguments += ["--announce", at_port(text, number)]
    if (port := options["metrics_port"]) is not None:
        arguments += ["--metrics-port", at_port(f":{port}", number).removeprefix(":")]
    if (limit := options["upload_limit"]) is not None:
        each = parse_upload("--upload-limit", str(limit)) / len(names)
        parse_upload(f"--upload-limit (shared by {len(names)} devices)", f"{each:.0f}B/s")
        arguments += ["--upload-limit", f"{each:.0f}B/s"]
    form = options["log_format"]
    if form == "live":
        raise ConfigError("--log-format live: several devices have no common picture; choose plain, json or auto")
    return [*arguments, "--log-format", "json" if form == "json" else "plain"]


def at_port(address: str, number: int) -> str:
    """Return an address, HOST:PORT or a multiaddr, with the port that is so many higher; 0, any, stays.

    Raises ConfigError.
    """
    if address.startswith("/"):
        return _PORTS.sub(lambda found: f"{found[1]}{_port(found[2], number, address)}", address)
    host, colon, port = address.rpartition(":")
    return f"{host}{colon}{_port(port, number, address)}" if port.isascii() and port.isdigit() else address


def _port(text: str, number: int, address: str) -> int:
    port = int(text) + number if int(text) else 0
    if port > 65535:
        raise ConfigError(f"{address}: device {number} would have port {port}: give a smaller one")
    return port


def _given(context: click.Context) -> list[str]:
    """Return the options of the command line that all devices have alike."""
    arguments: list[str] = []
    for option in context.command.params:
        name = option.name or ""
        if name in _OWN or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        assert isinstance(option, click.Option), "the command has options alone"
        value = context.params[name]
        if option.is_flag:
            arguments.append((option.opts if value else option.secondary_opts)[0])
        else:
            for each in value if option.multiple else (value,):
                arguments += [option.opts[0], str(each)]
    return arguments


def _labels(names: Sequence[str]) -> list[str]:
    """Return the names, with a number where a device is named twice."""
    counts, seen = Counter(names), Counter[str]()
    labels = []
    for name in names:
        labels.append(name if counts[name] == 1 else f"{name} {seen[name]}")
        seen[name] += 1
    return labels
