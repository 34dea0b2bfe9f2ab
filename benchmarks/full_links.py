"""What a link carries that is full in both directions, beside small messages: `python -m benchmarks.full_links`.

A process behind a slow link and others behind fast ones send tensors to each other without a pause (Linux, root). It
prints what the slow link carries of them, and how long small messages take, which cross it meanwhile. See README.md
beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import uvloop

from benchmarks.shaped import CARRIED, inside, machines, unavailable
from swarmflow.core.protocol.types import ProcessId
from swarmflow.files import write_whole
from swarmflow.local.swarm import terminable
from swarmflow.runtime.transport.node import Node
from tests.runtime.nodes import End

FAST_MBPS = 40.0
TENSOR_BYTES = 1 << 18
AHEAD = 2  # tensors that are queued to each process
WORD_S = 0.1  # between two small messages
WARMUP_S, MEASURED_S = 5.0, 20.0
START_S = 60.0
SLOW = "slow"


@dataclass(frozen=True)
class FullLink:
    """What a link carries while both of its directions are full. delays_s: of small messages, by receiver."""

    up_mbps: float  # of tensors
    down_mbps: float
    delays_s: dict[str, list[float]]

    def lines(self) -> list[str]:
        """The link of a machine in a scenario."""
        return [f"up_mbps = {self.up_mbps:.2f}", f"down_mbps = {self.down_mbps:.2f}"]


@dataclass
class Arrivals:
    """What one process has received since the warm-up."""

    tensor_bytes: int = 0
    delays_s: list[float] = field(default_factory=list)  # of small messages, from when they were sent

    def take(self, _: ProcessId, header: bytes, bodies: list[memoryview], __: object) -> None:
        """Count a message."""
        self.tensor_bytes += sum(map(len, bodies))
        if not bodies:
            self.delays_s.append(time.time() - float(header))


def main() -> int:
    """0; 2: it cannot be measured here."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.full_links", description=__doc__)
    parser.add_argument("--mbps", type=float, default=4.0, help="of the slow link, in each direction")
    parser.add_argument("--others", type=int, default=1, help="processes at the other end")
    parser.add_argument("--serve", nargs=3, metavar=("NAME", "ADDRESS", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        name, address, folder = options.serve
        uvloop.run(serve(name, address, Path(folder), options.others))
        return 0
    reason = unavailable()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    measured = full_link(options.mbps, options.others)
    for name, delays_s in measured.delays_s.items():
        tenths = quantiles(delays_s, n=10)
        print(f"small messages to {name:7} median {tenths[4]:.3f} s, nine of ten within {tenths[8]:.3f} s")
    carried = options.mbps * CARRIED
    for direction, mbps in (("to the slow one", measured.down_mbps), ("from it", measured.up_mbps)):
        print(f"{direction:16} {mbps:.2f} Mb/s of tensors, of {carried:.2f}")
    return 0


def full_link(mbps: float, others: int = 1) -> FullLink:
    """What a link of such a speed, in each direction, carries while both are full."""
    names = process_names(others)
    rates = {name: mbps if name == SLOW else FAST_MBPS for name in names}
    with tempfile.TemporaryDirectory(prefix="swarmflow-links-") as folder, machines(names, rates) as addresses:
        measured = run(Path(folder), addresses, others)
    down_bytes = measured[SLOW]["tensor_bytes"]
    up_bytes = sum(result["tensor_bytes"] for result in measured.values()) - down_bytes
    delays_s = {name: result["delays_s"] for name, result in measured.items()}
    return FullLink(8e-6 * up_bytes / MEASURED_S, 8e-6 * down_bytes / MEASURED_S, delays_s)


def run(folder: Path, addresses: dict[str, str], others: int) -> dict[str, dict[str, Any]]:
    """Let the processes send; return what each has received."""
    serving = sys.executable, "-m", "benchmarks.full_links", "--others", str(others), "--serve"
    processes = [
        subprocess.Popen([*inside(name), *serving, name, address, str(folder)], stdout=subprocess.PIPE)
        for name, address in addresses.items()
    ]
    try:
        answers = [process.communicate(timeout=2 * START_S + WARMUP_S + MEASURED_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return {name: json.loads(answer) for name, answer in zip(addresses, answers, strict=True)}


async def serve(name: str, address: str, folder: Path, others: int) -> None:
    """Send tensors and small messages to those at the other end, and print what arrives meanwhile."""
    names = process_names(others)
    known = [] if name == SLOW else (await found(folder, SLOW))["addresses"]
    node = await Node.start(identity_path=folder / f"{name}.key", listen=(f"{address}:0",), bootstrap=known)
    received = Arrivals()
    end = End(node, names.index(name) + 1, on_message=received.take)
    await end.links.start()
    write_whole(folder / f"{name}.json", json.dumps({"name": node.name, "addresses": node.addresses()}).encode())
    to = []
    for other in names[1:] if name == SLOW else [SLOW]:
        where = await found(folder, other)
        to.append(ProcessId(where["name"], names.index(other) + 1))
        end.links.set_addresses(to[-1], where["addresses"])
    await send(end, to, WARMUP_S)
    received.tensor_bytes = 0
    received.delays_s.clear()
    await send(end, to, MEASURED_S)
    print(json.dumps({"tensor_bytes": received.tensor_bytes, "delays_s": received.delays_s}))
    await end.links.close(0.0)
    await node.stop()


async def send(end: End, to: list[ProcessId], seconds: float) -> None:
    """Keep tensors queued to each of these processes, and send each a small message now and then."""
    queued = dict.fromkeys(to, 0)
    tensor = bytes(TENSOR_BYTES)

    def written(process: ProcessId) -> None:
        queued[process] -= 1

    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for process in to:
            for _ in range(AHEAD - queued[process]):
                queued[process] += 1
                end.links.send(process, b"tensor", [tensor], lane="bulk", done=partial(written, process))
            end.links.send(process, repr(time.time()).encode())
        await asyncio.sleep(WORD_S)


async def found(folder: Path, name: str) -> dict[str, Any]:
    """Return how a process is reached, once it has written that."""
    async with asyncio.timeout(START_S):
        while not (folder / f"{name}.json").exists():
            await asyncio.sleep(WORD_S)
    result: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return result


def process_names(others: int) -> list[str]:
    """Of all processes."""
    return [SLOW, *(f"fast-{number}" for number in range(others))]


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
