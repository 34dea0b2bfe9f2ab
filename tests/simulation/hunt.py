"""Hunts for faults with two processes at a time: `make fuzz SEEDS=N`. Not a test: the seeds are new each time."""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from random import SystemRandom
from time import monotonic

PROCESSES = 2
FIRST_MAX = 10**9


def shares(first: int, seeds: int, processes: int) -> list[tuple[int, int]]:
    """First seed and number of seeds of each process, as even as can be; those without any are left out."""
    found: list[tuple[int, int]] = []
    for number in range(processes):
        share = seeds // processes + (number < seeds % processes)
        if share:
            found.append((first, share))
        first += share
    return found


def main(arguments: list[str] | None = None) -> int:
    """0 when every seed holds. The first that does not ends the hunt; it is printed how to replay it."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.hunt", description=__doc__)
    parser.add_argument("seeds", type=int, help="how many seeds to try")
    parser.add_argument("--first", type=int, help="the first seed; a random one if not given")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--partitions", action="store_true", help="only seeds with partitions aimed at phases")
    parser.add_argument("--only", help="only these kinds of faults, with commas between")
    chosen = parser.parse_args(arguments)
    if chosen.seeds < 1:
        parser.error(f"{chosen.seeds} seeds: must be at least 1")
    first = SystemRandom().randrange(FIRST_MAX) if chosen.first is None else chosen.first
    again = f"make fuzz SEEDS={chosen.seeds} FIRST={first}"
    options: list[str] = []
    if chosen.partitions:
        again, options = f"{again} PARTITIONS=1", ["--partitions"]
    if chosen.only:
        again, options = f"{again} ONLY={chosen.only}", [*options, "--only", chosen.only]
    began_s = monotonic()
    print(f"{chosen.seeds} seeds from {first} on; the same again: {again}", flush=True)
    command = [sys.executable, "-m", "swarmflow.simulator.fuzz"]
    hunts = [
        subprocess.Popen([*command, str(share), "--first", str(begin), *options])
        for begin, share in shares(first, chosen.seeds, chosen.processes)
    ]
    with ThreadPoolExecutor(len(hunts)) as waiting:
        for ended in as_completed([waiting.submit(hunt.wait) for hunt in hunts]):
            if ended.result() != 0:
                for hunt in hunts:
                    hunt.terminate()
    print(f"{60 * chosen.seeds / (monotonic() - began_s):.0f} seeds a minute")
    return int(any(hunt.returncode for hunt in hunts))


if __name__ == "__main__":
    sys.exit(main())
