"""The parent of the peers of one host, one process for each device: starts them, and forwards output and signals.

A peer that ends is not started again: that would hide why. The parent ends with the last of them. Its peers read a pipe
that it holds open, and leave when that ends, however the parent does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click
import uvloop

from peers.devices import DevicePeer, device_names, device_peers
from swarmflow.runtime.operations.logs import JsonFormatter, PlainFormatter, set_up_logging

log = logging.getLogger("swarmflow")

_READ_BYTES = 1 << 16
_LINE_BYTES_MAX = 1 << 20


def main(context: click.Context) -> int:
    """Run the peers of the devices that the command names; return 0, or the exit code of the first that fails.

    context: of the command `peer`. Raises ConfigError.
    """
    as_json = context.params["log_format"] == "json"
    names = device_names(context.params["device"])
    with tempfile.TemporaryDirectory(prefix="swarmflow-host-") as meeting:
        peers = device_peers(names, context, dict(os.environ), Path(meeting))
        set_up_logging(JsonFormatter() if as_json else PlainFormatter())
        log.info("one peer for each device: %s", ", ".join(peer.label for peer in peers))
        code: int = uvloop.run(_Host(peers, as_json).run())
        return code


class _Host:
    """The running processes."""

    def __init__(self, peers: Sequence[DevicePeer], as_json: bool) -> None:
        self._peers = peers
        self._as_json = as_json
        self._running: dict[str, Process] = {}  # by label
        self._code = 0
        self._received: list[int] = []  # signals, in order

    async def run(self) -> int:
        """Start all, and wait until the last has ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._forward, number)
        async with asyncio.TaskGroup() as tasks:
            for peer in self._peers:
                tasks.create_task(self._live(peer))
        return self._code

    def _forward(self, number: int) -> None:
        """Send a signal to every peer: they count them, as one that runs alone does (peers/ending.py)."""
        self._received.append(number)
        for process in self._running.values():
            _send(process, number)

    async def _live(self, peer: DevicePeer) -> None:
        """Run the process of one device to its end."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "swarmflow", *peer.arguments),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=peer.environment,
            start_new_session=True,  # Ctrl-C comes to it through the parent, once
        )
        self._running[peer.label] = process
        for number in self._received:
            _send(process, number)
        assert process.stdout is not None, "a pipe"
        assert process.stderr is not None, "a pipe"
        await asyncio.gather(self._pass_on(peer.label, process.stdout), self._pass_on(peer.label, process.stderr))
        code = await process.wait()
        del self._running[peer.label]
        if code:
            self._code = self._code or (code if code > 0 else 128 - code)
            if -code not in self._received:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                left = ", ".join(self._running) or "none"
                log.error("the peer of %s has ended with %s and is not started again; left: %s", peer.label, how, left)

    async def _pass_on(self, label: str, output: asyncio.StreamReader) -> None:
        """Write the lines of a process to stderr, each with its device."""
        rest = b""
        while data := await output.read(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _LINE_BYTES_MAX:
                lines, rest = [*lines, rest], b""
            self._write(label, lines)
        if rest:
            self._write(label, [rest])

    def _write(self, label: str, lines: Sequence[bytes]) -> None:
        shown = "".join(f"{self._with_device(label, line.decode(errors='replace'))}\n" for line in lines)
        with suppress(OSError):  # whoever read it has gone; the peers go on
            sys.stderr.write(shown)
            sys.stderr.flush()

    def _with_device(self, label: str, line: str) -> str:
        if not self._as_json:
            return f"[{label}] {line}"
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        fields = record if isinstance(record, dict) else {"message": line}
        return json.dumps({"device": label, **fields})


def _send(process: Process, number: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        process.send_signal(number)


def leave_with_parent() -> None:
    """In a peer of a host: leave, as by SIGTERM, when the parent ends, at which the pipe that is stdin does."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), _READ_BYTES):
            pass
        log.warning("the process that has started this peer is gone: leaving")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()
