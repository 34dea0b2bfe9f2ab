"""How fluid the page is with a thousand peers, and what it costs: `python -m benchmarks.page`. See README.md."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from swarmflow.page.server import PageServer
from tests.page.browser import MISSING, browser
from tests.page.fake_run import FakeRun

FRAMES_PER_S_MIN = 30.0
CPU_SHARE_MAX = 0.005  # of one core, with one viewer
POLL_S = 0.5  # as in poll.js
STAGES, PEERS, MICROBATCHES, VIEWS = 8, 1000, 1024, 40


class Replay:
    """A feed of views that were made before, the next one at each poll; they are encoded at each, as those of a run."""

    def __init__(self, peers: int, stages: int, microbatches: int) -> None:
        run = FakeRun(stages, peers, microbatches)
        run.advance(8.0)
        self.views, self.lines, began_s = [], run.lines, time.monotonic()
        for number in range(VIEWS):
            if number % 10 == 5:
                run.kill(run.serving(number % stages)[0])
            run.advance(POLL_S)
            self.views.append(run.view())
        self.events, self.began_s = run.events, began_s

    async def run(self, after: int) -> bytes:
        """Return the view of this moment, and the events with later numbers."""
        view = self.views[int((time.monotonic() - self.began_s) / POLL_S) % VIEWS]
        events = [event for event in self.events if event["seq"] > after]
        return msgspec.json.encode({"mode": "live", "view": view, "events": events, "error": None})

    async def steps(self, after: int) -> bytes:
        """Return the steps with later numbers."""
        return msgspec.json.encode({"steps": [line for line in self.lines if line["seq"] > after]})

    async def recording(self) -> None:
        """Return None: the run is live."""


class Serving:
    """A server on a loop in a thread of its own, and the CPU time of that thread."""

    def __init__(self, replay: Replay) -> None:
        self._server = PageServer(replay)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> int:
        """Return the port."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._server.start("127.0.0.1", 0), self._loop).result(10)

    def cpu_s(self) -> float:
        """Return the CPU time that the server has taken, in seconds."""

        async def read() -> float:
            return time.thread_time()

        return asyncio.run_coroutine_threadsafe(read(), self._loop).result(10)

    def stop(self) -> None:
        """Stop the server and its loop."""
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@contextmanager
def serving(replay: Replay) -> Iterator[tuple[Serving, int]]:
    """Serve a feed; the server and its port."""
    server = Serving(replay)
    try:
        yield server, server.start()
    finally:
        server.stop()


def frames_per_s(seconds: float, folder: Path) -> dict[str, Any]:
    """Measure the frames of the page in a headless browser: how many a second, and the longest gaps between them."""
    with serving(Replay(PEERS, STAGES, MICROBATCHES)) as (_, port), browser(folder) as page:
        page.resize(1440, 1000)
        page.open(f"http://127.0.0.1:{port}/")
        page.wait("return swarmflow.run.peers.length > 900", "the peers")
        page.run("swarmflow.frames.length = 0")
        deadline_s = time.monotonic() + seconds
        times: list[float] = []
        while time.monotonic() < deadline_s:
            time.sleep(0.5)
            times += [at for at in page.run("return swarmflow.frames") if not times or at > times[-1]]
    gaps = sorted(after - before for before, after in itertools.pairwise(times))
    return {
        "frames_per_s": 1000 / statistics.fmean(gaps),
        "median_ms": statistics.median(gaps),
        "p95_ms": gaps[int(0.95 * len(gaps))],
        "longest_ms": gaps[-1],
    }


async def _view(port: int, until_s: float) -> int:
    """Ask as a page does, and return how often."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = 0
    while time.monotonic() < until_s:
        writer.write(b"GET /api/run?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
        await reader.readexactly(length)
        asked += 1
        await asyncio.sleep(POLL_S)
    writer.close()
    return asked


async def _look(port: int, viewers: int, seconds: float) -> int:
    until_s = time.monotonic() + seconds
    counts = await asyncio.gather(*(_view(port, until_s) for _ in range(viewers)))
    return sum(counts)


def cpu_share(peers: int, viewers: int, seconds: float) -> float:
    """Return the CPU time that the server takes with so many viewers, as a share of one core."""
    replay = Replay(peers, *((STAGES, MICROBATCHES) if peers > 100 else (3, 24)))
    with serving(replay) as (server, port):
        uvloop.run(_look(port, 1, 2 * POLL_S))
        before_s, began_s = server.cpu_s(), time.monotonic()
        asked = uvloop.run(_look(port, viewers, seconds))
        took_s, passed_s = server.cpu_s() - before_s, time.monotonic() - began_s
    assert asked >= viewers
    return took_s / passed_s


def main() -> int:
    """0 where the page is fluid and costs little, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    if MISSING:
        sys.exit(f"benchmarks.page: {MISSING}")
    print(f"load average before: {os.getloadavg()[0]:.2f}")
    found: dict[str, Any] = {}
    for peers in (12, PEERS):
        for viewers in (1, 50):
            share = found[f"cpu_share_{peers}_peers_{viewers}_viewers"] = cpu_share(peers, viewers, options.seconds / 2)
            print(f"serving {peers:4d} peers to {viewers:2d} viewers     {share:8.2%} of one core")
    with tempfile.TemporaryDirectory(prefix="swarmflow-page-") as folder:
        found |= frames_per_s(options.seconds, Path(folder))
    print(f"page with {PEERS} peers, {MICROBATCHES} microbatches  {found['frames_per_s']:8.1f} frames/s")
    times = f"median {found['median_ms']:.1f}, 95% {found['p95_ms']:.1f}, longest {found['longest_ms']:.1f}"
    print(f"  milliseconds a frame: {times}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    fluid = found["frames_per_s"] >= FRAMES_PER_S_MIN
    return 0 if fluid and found["cpu_share_12_peers_1_viewers"] <= CPU_SHARE_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
