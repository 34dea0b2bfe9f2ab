"""What it costs that a run is watched: `python -m benchmarks.watching`. See README.md."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.accounted import WATCHING
from benchmarks.bookkeeping import account_of
from benchmarks.memory import resident_bytes
from benchmarks.throughput import MEGA, MODEL, RUN_S, STAGES, Work, settings
from swarmflow.demo.corpus import write_corpus
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm, environment, terminable

SHARE_MAX = 0.005
MEMORY_MAX_MB = 5.0
ASK_EVERY_S = 0.5  # as the page does
SCRAPE_EVERY_S = 15.0  # as docker/prometheus.yml has it
MANY = 50
LOWEST_PRIORITY = 19


@dataclass
class Figures:
    """Of the runs with one number of viewers. memory_mb: of each process, at the last step but one."""

    shares: list[float] = field(default_factory=list)
    memory_mb: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    step_seconds: list[float] = field(default_factory=list)


def measure(folder: Path, work: Work, viewers: int | None, found: Figures) -> None:
    """Run the swarm of benchmarks.throughput once. viewers: of the page; None: nothing is served, and nobody asks."""
    folder.mkdir()
    corpus = folder / "corpus.txt"
    write_corpus(corpus)
    watched = viewers is not None
    served = ("--metrics-port", "0") if watched else ()
    with (
        ForkServer(environment(threads=1), "benchmarks.accounted") as forks,
        LocalSwarm(folder / "swarm", settings(corpus, work), forks=forks) as swarm,
    ):
        swarm.start_trainer(*served, *(("--page", "0") if watched else ()))
        for stage in range(STAGES):
            swarm.start_peer("--capacity", str(work.capacity), *served, stage=stage)
        swarm.wait_steps(1, RUN_S)
        with watching(swarm.processes, viewers or 0):
            swarm.wait_steps(work.steps - 1, RUN_S)
            for process in swarm.processes:
                found.memory_mb[process.name].append(resident_bytes(process.pid)[0] / MEGA)
            swarm.wait_finished(RUN_S)
        accounts = [account_of(swarm, process) for process in swarm.processes]
        found.step_seconds += [step["seconds"] for step in swarm.steps()[1:]]
    computed_s = sum(seconds["work"] + seconds["update"] for seconds in accounts)
    found.shares.append(sum(seconds[WATCHING] for seconds in accounts) / computed_s)


@contextmanager
def watching(processes: Sequence[LocalProcess], viewers: int) -> Iterator[None]:
    """Read the metrics of all processes and of the swarm now and then, and the page as viewers do."""
    over = threading.Event()
    logs = "".join(process.log.read_text(encoding="utf-8") for process in processes)
    pages = re.findall(r"page: (\S+)", logs)
    metrics = re.findall(r"metrics: (\S+)", logs)
    of_swarm = [
        f"{url.removesuffix('/metrics')}{path}" for url in metrics[:1] for path in ("/metrics/swarm", "/targets")
    ]
    readers = [threading.Thread(target=look, args=(url, viewers, over)) for url in pages]
    readers.append(threading.Thread(target=scrape, args=([*metrics, *of_swarm], over)))
    for reader in readers:
        reader.start()
    try:
        yield
    finally:
        over.set()
        for reader in readers:
            reader.join()


def look(page: str, viewers: int, over: threading.Event) -> None:
    """Ask what so many pages ask until the run or the watching is over, with the time that the swarm leaves."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)

    async def viewer(host: str, port: int) -> None:
        event, step = 0, 0
        while not over.is_set():
            event = max([event, *(each["seq"] for each in (await ask(host, port, f"run?after={event}"))["events"])])
            step = max([step, *(each["seq"] for each in (await ask(host, port, f"steps?after={step}"))["steps"])])
            await asyncio.sleep(ASK_EVERY_S)

    async def view() -> None:
        address = urlsplit(page)
        with suppress(OSError, json.JSONDecodeError):  # the trainer has ended, perhaps amid an answer
            await asyncio.gather(*(viewer(address.hostname or "", address.port or 0) for _ in range(viewers)))

    asyncio.run(view())


async def ask(host: str, port: int, what: str) -> dict[str, Any]:
    """Return what the page's server answers."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET /api/{what} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer: dict[str, Any] = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
    writer.close()
    return answer


def scrape(urls: Sequence[str], over: threading.Event) -> None:
    """Read metrics until the run or the watching is over."""
    while not over.wait(SCRAPE_EVERY_S):
        for url in urls:
            with suppress(OSError):  # the process has ended
                read(url)


def read(url: str) -> bytes:
    """Return what a page answers."""
    with urllib.request.urlopen(url, timeout=SCRAPE_EVERY_S) as answer:
        body: bytes = answer.read()
    return body


def main() -> int:
    """0 where being watched by one costs at most SHARE_MAX and MEMORY_MAX_MB, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watching", description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    work = Work(MODEL, steps=chosen.steps)
    found: dict[int | None, Figures] = {viewers: Figures() for viewers in (None, 1, MANY)}
    with tempfile.TemporaryDirectory(prefix="swarmflow-watching-") as folder:
        for number, (viewers, figures) in itertools.product(range(chosen.rounds), found.items()):
            measure(Path(folder) / f"{number}-{viewers}", work, viewers, figures)
            print(
                f"round {number}, {named(viewers)}: {figures.shares[-1]:.2%} of the CPU time of computing", flush=True
            )
    return report(*found.values())


def report(alone: Figures, watched: Figures, crowd: Figures) -> int:
    """Print the medians. Returns 0 where they are within their limits, else 1."""
    share = statistics.median(watched.shares)
    print(
        f"\nmetrics, summaries, page with a viewer, of the CPU time of computing: {share:.2%} (at most {SHARE_MAX:.1%})"
    )
    medians = {
        name: (statistics.median(mb), statistics.median(watched.memory_mb[name]))
        for name, mb in alone.memory_mb.items()
    }
    more = ", ".join(f"{name} {after - before:+.1f} MB" for name, (before, after) in medians.items())
    print(f"memory, watched over not watched: {more} (at most {MEMORY_MAX_MB:g} MB)")
    ratio = statistics.median(crowd.step_seconds) / statistics.median(alone.step_seconds)
    print(f"time of a step with {MANY} viewers over that with none: {ratio:.3f}")
    within = all(after - before <= MEMORY_MAX_MB for before, after in medians.values())
    return 0 if share <= SHARE_MAX and within else 1


def named(viewers: int | None) -> str:
    """Return who watches, in words."""
    return "not watched" if viewers is None else f"{viewers} viewer{'s' if viewers > 1 else ''}"


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
