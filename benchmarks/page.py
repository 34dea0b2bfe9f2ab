"""How fluid the page is with many peers, and what viewers cost: `python -m benchmarks.page`. See README.md."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from swarmflow.page.server import PageServer
from tests.page.browser import MISSING, browser
from tests.page.views import PretendedRun

FRAMES_MIN = 30.0
LOOK_S = 10.0
VIEWERS = (1, 50)
ASK_EVERY_S = 0.5  # as the page does


@dataclass
class SharedFeed:
    """A feed that makes its answer twice a second, however many ask, as that of a run does."""

    run_: PretendedRun
    _made_s: float = 0.0
    _answer: bytes = b""

    async def run(self, after: int) -> bytes:
        if time.monotonic() - self._made_s > ASK_EVERY_S:
            self._made_s, self._answer = time.monotonic(), await self.run_.run(after)
        return self._answer

    async def steps(self, after: int) -> bytes:
        return await self.run_.steps(after)

    async def recording(self) -> None:
        return None


async def frames(peers: int, stages: int) -> list[float]:
    """The seconds between the frames that a headless browser draws of so many peers while the run changes."""
    run = PretendedRun(stages=(peers // stages,) * stages, microbatches=256)
    server = PageServer(SharedFeed(run))
    port = await server.start("127.0.0.1", 0)
    with tempfile.TemporaryDirectory(prefix="swarmflow-page-") as folder:
        times = await asyncio.to_thread(_look, Path(folder), port, peers)
    server.close()
    return [(b - a) / 1000 for a, b in itertools.pairwise(times)]


def _look(folder: Path, port: int, peers: int) -> list[float]:
    """Return when the frames of LOOK_S were drawn, in milliseconds."""
    with browser(folder) as chromium:
        chromium.open(f"http://127.0.0.1:{port}/")
        chromium.wait(f"return window.swarmflow.view?.stages.flatMap(s => s.peers).length === {peers}", "all peers")
        drawn: list[float] = []
        deadline_s = time.monotonic() + LOOK_S
        while time.monotonic() < deadline_s:
            fresh: list[float] = chromium.run("return window.swarmflow.frames.splice(0)")
            drawn += fresh
            time.sleep(1.0)  # the measuring itself is to cost few frames
        return drawn


async def serving_share(viewers: int, peers: int, stages: int) -> float:
    """The share of one core that the server takes with so many viewers, its feed included."""
    server = PageServer(SharedFeed(PretendedRun(stages=(peers // stages,) * stages, microbatches=16)))
    port = await server.start("127.0.0.1", 0)
    over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_view(viewers, port, over)))
    thread.start()
    await asyncio.sleep(1.0)
    began_s, used_s = time.monotonic(), time.thread_time()
    await asyncio.sleep(LOOK_S / 2)
    share = (time.thread_time() - used_s) / (time.monotonic() - began_s)
    over.set()
    await asyncio.to_thread(thread.join)
    server.close()
    return share


async def _view(viewers: int, port: int, over: threading.Event) -> None:
    async def view() -> None:
        while not over.is_set():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /api/run?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
            writer.close()
            await asyncio.sleep(ASK_EVERY_S)

    await asyncio.gather(*(view() for _ in range(viewers)))


def main() -> int:
    """0 where the median frame rate is at least FRAMES_MIN, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--stages", type=int, default=10)
    chosen = parser.parse_args()
    for viewers in VIEWERS:
        for peers in (6, chosen.peers):
            share = asyncio.run(serving_share(viewers, peers, min(chosen.stages, peers)))
            print(f"server, {peers:5d} peers, {viewers:2d} viewers: {share:7.2%} of a core")
    if MISSING:
        print(f"the page is not drawn: {MISSING}")
        return 1
    gaps = asyncio.run(frames(chosen.peers, chosen.stages))
    rate, worst = 1 / statistics.median(gaps), statistics.quantiles(gaps, n=20)[-1]
    mean = len(gaps) / sum(gaps)
    print(f"page, {chosen.peers} peers: {mean:.1f} frames/s on average, {rate:.1f} by the median frame, ", end="")
    print(f"95% of the frames within {1000 * worst:.0f} ms (at least {FRAMES_MIN:g} frames/s)")
    return 0 if mean >= FRAMES_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
