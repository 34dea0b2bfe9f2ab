"""What exactly-once costs while nothing goes wrong: `python -m benchmarks.bookkeeping`. See README.md."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks import step_end
from benchmarks.accounted import BY_CLOCK, FILE
from benchmarks.throughput import MODEL, RUN_S, STAGES, Work, settings
from swarmflow.demo.corpus import write_corpus
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm, environment, terminable

SHARE_MAX = 0.015
PARTS = ("decisions", "messages", "signatures", "digests", "hashes")


@dataclass(frozen=True)
class Costs:
    """Of one run, in seconds. by_process: CPU time by part.

    steps_s, update_s: by the clock, from the first opening on, and of the update in the process where it takes longest.
    """

    by_process: dict[str, Counter[str]]
    steps_s: float
    update_s: float

    @property
    def computed_s(self) -> float:
        """What the peers' threads computed and encoded; digests are no part of it."""
        total = sum(seconds["work"] + seconds["update"] for seconds in self.by_process.values())
        return total - self.part("digests")

    def part(self, name: str) -> float:
        """Of all processes."""
        return sum(seconds[name] for seconds in self.by_process.values())

    @property
    def cpu_share(self) -> float:
        """Bookkeeping's CPU time, as a share of that of computing."""
        return sum(map(self.part, PARTS)) / self.computed_s

    @property
    def edge_share(self) -> float:
        """Time from a complete step to the next one's opening without the update itself, as a share of all time."""
        return max(0.0, self.part("edges") - self.update_s) / self.steps_s


def measure(folder: Path, work: Work) -> Costs:
    """Runs the swarm of benchmarks.throughput, with processes that account for what they do."""
    corpus = folder / "corpus.txt"
    write_corpus(corpus)
    with (
        ForkServer(environment(threads=1), "benchmarks.accounted") as forks,
        LocalSwarm(folder / "swarm", settings(corpus, work), forks=forks) as swarm,
    ):
        swarm.start_trainer()
        for stage in range(STAGES):
            swarm.start_peer("--capacity", str(work.capacity), stage=stage)
        swarm.wait_finished(RUN_S)
        by_process = {process.name: account_of(swarm, process) for process in swarm.processes}
        steps = swarm.steps()
    steps_s = steps[-1]["time"] - steps[0]["time"] + steps[0]["seconds"]
    # The stages update beside one another: the slower one is waited for.
    update_s = max(seconds["update" + BY_CLOCK] - seconds["digests" + BY_CLOCK] for seconds in by_process.values())
    return Costs(by_process, steps_s, update_s)


def account_of(swarm: LocalSwarm, process: LocalProcess) -> Counter[str]:
    """Return the seconds that a process that has ended has written down, by part."""
    return Counter(json.loads((swarm.state_folder(process.name) / FILE).read_text(encoding="utf-8")))


def main() -> int:
    """0 where the bookkeeping takes at most SHARE_MAX, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bookkeeping", description=__doc__)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--parameters", type=float, metavar="N", help="the end of a step of so many a stage, instead")
    options = parser.parse_args()
    if options.parameters is not None:
        step_end.show(options.parameters)
        return 0
    work = Work(MODEL, steps=options.steps)
    with tempfile.TemporaryDirectory(prefix="swarmflow-bookkeeping-") as folder:
        costs = measure(Path(folder), work)
    names = (*PARTS, "update", "work", "loop")
    print("CPU seconds  " + "".join(f"{name:>11s}" for name in names))
    for process, seconds in costs.by_process.items():
        print(f"{process:13s}" + "".join(f"{seconds[name]:11.3f}" for name in names))
    print(f"\nbookkeeping, of the CPU time of computing  {costs.cpu_share:7.2%}")
    print(f"edges of steps but for the update, of all  {costs.edge_share:7.2%}")
    share = costs.cpu_share + costs.edge_share
    print(f"together                                   {share:7.2%}  (at most {SHARE_MAX:.1%})")
    return 0 if share <= SHARE_MAX else 1


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
