"""A peer joins a running swarm over shaped links, then a checkpoint is written: what that costs the steps.

Real processes, each in a network namespace of its own behind a `tbf` queue, and where that is wanted with cores of its
own. One stage; some peers serve it, and another one joins while steps are made. Prints the seconds of the steps before
and during the join, and the seconds of the join beside the bytes of the state over what training leaves free of the
links: of the newcomer's, and of its donors'. Where a checkpoint is wanted, also the seconds of the steps until it is on
the trainer's disk.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import quota, shaped
from benchmarks.shaped import CARRIED, machines
from swarmflow.demo.corpus import write_corpus
from swarmflow.local.swarm import LocalProcess, LocalSwarm, terminable

RUN_S = 3600.0
WARMUP = 1  # step
SAMPLE_S = 0.5
STATE_BYTES = 12  # of a parameter, with AdamW
STEP_WANTED, JOIN_WANTED, RATE_WANTED = 1.1, 1.2, 0.8
SEQ_LEN = 64


@dataclass(frozen=True)
class Case:
    """A swarm and what happens to it."""

    donors: int
    mbps: float  # of a donor's link
    newcomer_mbps: float
    millions: float  # parameters
    microbatches: int
    kill: bool  # a donor, amid the load
    steps: int  # before the join
    checkpoint_every: int  # steps; the first one after the join is measured; 0: none
    cores: float  # of each machine; 0: they share all that there are

    @property
    def width(self) -> int:
        """Of the model, whose eight blocks have 12 width^2 parameters each."""
        return 64 * max(1, round(math.sqrt(self.millions * 1e6 / 96) / 64))

    @property
    def parameters(self) -> int:
        """Of the stage."""
        block = 4 * self.width**2 + 3 * self.width * (8 * self.width // 3) + 2 * self.width
        return 8 * block + 2 * 256 * self.width + self.width

    def settings(self, corpus: Path) -> dict[str, dict[str, Any]]:
        """RUN.toml."""
        model = {
            "model_type": "llama",
            "hidden_size": self.width,
            "intermediate_size": 8 * self.width // 3,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "vocab_size": 256,
            "max_position_embeddings": SEQ_LEN,
            "tie_word_embeddings": False,
        }
        train = {"steps": 10_000, "microbatches": self.microbatches, "microbatch_sequences": 1}
        return {
            "run": {"name": "joining", "output": "out"},
            "model": {"config": model, "stages": 1},
            "data": {"path": str(corpus), "tokenizer": "bytes", "seq_len": SEQ_LEN},
            "optimizer": {"name": "adamw", "lr": 1e-4},
            "train": {**train, "checkpoint_every": self.checkpoint_every or 10_000},
        }


@dataclass(frozen=True)
class Joined:
    """What was measured of a join."""

    before_s: list[float]  # seconds of steps
    during_s: list[float]
    join_s: float  # from the grant until the newcomer is ready
    received_bytes: int  # on the newcomer's link, in that time
    training_bytes_per_s: float  # over a donor's uplink, before the join
    free_bytes_per_s: float  # of the newcomer's link, or of all donors' uplinks where that is less, at each time
    state_bytes: int
    log: list[str]  # of the load
    saved: WrittenCheckpoint | None  # the checkpoint after it


@dataclass(frozen=True)
class WrittenCheckpoint:
    """What was measured of a checkpoint."""

    before_s: list[float]  # seconds of steps since the newcomer takes part
    during_s: list[float]  # from its own step on until that in which it was whole on the trainer's disk
    written_s: float


class FreeRate:
    """What training sends over the donors' links, sampled: the members of a stage reduce at the same time."""

    def __init__(self, case: Case, numbers: list[int]) -> None:
        self._case = case
        self._numbers = numbers
        self._last_s = time.monotonic()
        self._last = [_outer(number) for number in numbers]
        self._sent_bytes = self._free_bytes = self._seconds = 0.0

    def sample(self) -> bool:
        """Read the counters, if it is time to; return True."""
        now_s = time.monotonic()
        seconds = now_s - self._last_s
        if seconds >= SAMPLE_S:
            sent = [_outer(number) for number in self._numbers]
            room = CARRIED * self._case.mbps * 125_000 * seconds
            given = [after - before for before, after in zip(self._last, sent, strict=True)]
            link = CARRIED * self._case.newcomer_mbps * 125_000 * seconds
            self._free_bytes += min(link, sum(max(0.0, room - each) for each in given))
            self._sent_bytes += sum(given) / len(given)
            self._seconds += seconds
            self._last_s, self._last = now_s, sent
        return True

    @property
    def training(self) -> float:
        """Bytes/s over a donor's uplink."""
        return self._sent_bytes / self._seconds

    @property
    def free(self) -> float:
        """Bytes/s that a newcomer could get beside."""
        return self._free_bytes / self._seconds


def run(folder: Path, case: Case) -> Joined:
    """Train, and have a peer join."""
    corpus = folder / "corpus.txt"
    write_corpus(corpus)
    peers = [f"peer-{number}" for number in range(case.donors + 1)]
    rates = {"trainer-0": 1000.0, **dict.fromkeys(peers, case.mbps), peers[-1]: case.newcomer_mbps}
    with ExitStack() as stack:
        addresses = stack.enter_context(machines(list(rates), rates))
        within = {name: shaped.inside(name) for name in rates}
        if case.cores:
            stack.enter_context(quota.machines_of(case.cores, peers))
            within |= {name: (*quota.inside(name, number), *within[name]) for number, name in enumerate(peers)}
        with LocalSwarm(folder / "swarm", case.settings(corpus), within=within) as swarm:
            trainer = swarm.start_trainer("--listen", f"{addresses['trainer-0']}:0")
            for name in peers[:-1]:
                _start(swarm, addresses[name])
            full = [case.donors]
            swarm.wait(lambda: full in (step["peers"] for step in swarm.steps()), "a step with all peers", RUN_S)
            first = len(swarm.steps()) + WARMUP
            swarm.wait_steps(first, RUN_S)
            links = FreeRate(case, list(range(1, case.donors + 1)))
            swarm.wait(lambda: links.sample() and len(swarm.steps()) >= first + case.steps, "the steps before", RUN_S)
            newcomer = _start(swarm, addresses[peers[-1]])
            swarm.wait(lambda: "granted stage" in _log(newcomer), "the grant", RUN_S)
            begun, joined_s, arrived = len(swarm.steps()), time.monotonic(), _outer(case.donors + 1, "tx")
            if case.kill:
                swarm.wait(lambda: re.search(r"loading stage 0: \d", _log(newcomer)), "half of the load", RUN_S)
                swarm.peers[0].kill()
            swarm.wait(lambda: "is loaded at version" in _log(newcomer), "the load", RUN_S)
            join_s, received = time.monotonic() - joined_s, _outer(case.donors + 1, "tx") - arrived
            full = [case.donors + 1 - case.kill]
            swarm.wait(lambda: swarm.steps()[-1]["peers"] == full, "the newcomer to take part", RUN_S)
            part = len(swarm.steps())
            lines = [line for line in _log(newcomer).splitlines() if re.search("stage 0|lost|serving", line)]
            saved = _saved(swarm, trainer, case.checkpoint_every) if case.checkpoint_every else None
            seconds = _seconds(swarm.steps())
    return Joined(
        seconds[first - 1 : first - 1 + case.steps],
        seconds[begun - 1 : part - 1],
        join_s,
        received,
        links.training,
        links.free,
        STATE_BYTES * case.parameters,
        lines,
        saved,
    )


def _saved(swarm: LocalSwarm, trainer: LocalProcess, every: int) -> WrittenCheckpoint:
    """Wait for the next checkpoint, until it is on the trainer's disk."""
    part = len(swarm.steps())
    version = every * math.ceil((part + 1) / every)
    swarm.wait_steps(version, RUN_S)
    begun_s = time.monotonic()
    swarm.wait(lambda: f"version {version} is on disk" in _log(trainer), "the checkpoint", RUN_S)
    written_s = time.monotonic() - begun_s
    swarm.wait_steps(len(swarm.steps()) + 1, RUN_S)
    seconds = _seconds(swarm.steps())
    return WrittenCheckpoint(seconds[part : version - 1], seconds[version - 1 :], written_s)


def report_steps(during_s: list[float], median_s: float, what: str) -> bool:
    """Print the seconds of steps; return whether none has taken longer than wanted."""
    print(f"steps during {what}: {_shown(during_s)}; longest {max(during_s) / median_s:.2f} of the median")
    return max(during_s) <= STEP_WANTED * median_s


def report(case: Case, joined: Joined) -> bool:
    """Print what was measured; return whether it is as wanted."""
    link = CARRIED * case.newcomer_mbps * 125_000
    free = joined.free_bytes_per_s
    median_s = statistics.median(joined.before_s)
    print(f"steps before: {_shown(joined.before_s)}; median {median_s:.2f} s")
    held = report_steps(joined.during_s, median_s, "the join")
    print(f"state {joined.state_bytes / 1e6:.1f} MB; on the newcomer's link {joined.received_bytes / 1e6:.1f} MB")
    print(
        f"training sends {joined.training_bytes_per_s / 1e6:.2f} MB/s over each donor's link, and leaves free", end=" "
    )
    print(f"{free / 1e6:.2f} MB/s of what the newcomer's link takes ({link / 1e6:.2f} MB/s)")
    ratio = joined.join_s * free / joined.state_bytes
    print(f"join: {joined.join_s:.1f} s, {ratio:.2f} of the state's bytes over the free rate")
    print(f"      {joined.join_s * free / joined.received_bytes:.2f} of all bytes that arrived over it")
    print(f"      {joined.received_bytes / joined.join_s / link:.0%} of the newcomer's link on average")
    print("\n".join(joined.log))
    if joined.saved is not None:
        print(f"checkpoint: on the trainer's disk after {joined.saved.written_s:.0f} s")
        print(f"steps before, with the newcomer: {_shown(joined.saved.before_s)}")
        usual_s = statistics.median(joined.saved.before_s or joined.before_s)
        held &= report_steps(joined.saved.during_s, usual_s, "the checkpoint")
    return held and ratio <= JOIN_WANTED


def main() -> int:
    """0 where it is as wanted, else 1; 2: it cannot be measured here."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joining", description=__doc__)
    parser.add_argument("--donors", type=int, default=2)
    parser.add_argument("--mbps", type=float, default=50.0, help="of each donor's link, in each direction")
    parser.add_argument("--newcomer-mbps", type=float, default=50.0)
    parser.add_argument("--millions", type=float, default=100.0, help="parameters of the stage")
    parser.add_argument("--microbatches", type=int, default=64, help="of a step: they set how long it computes")
    parser.add_argument("--kill", action="store_true", help="kill a donor amid the load")
    parser.add_argument("--steps", type=int, default=5, help="measured before the join")
    parser.add_argument("--cores", type=float, default=0.0, help="of each peer's machine, at most 1; 0: all share all")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps; measure the first one after the join")
    given = parser.parse_args()
    reason = shaped.unavailable() or (quota.unavailable() if given.cores else None)
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    case = Case(**vars(given))
    with tempfile.TemporaryDirectory(prefix="swarmflow-joining-") as folder:
        return int(not report(case, run(Path(folder), case)))


def _start(swarm: LocalSwarm, address: str) -> LocalProcess:
    chosen = ("--capacity", "2", "--rebalance-period", "0")
    return swarm.start_peer("--listen", f"{address}:0", *chosen, stage=0)


def _log(process: LocalProcess) -> str:
    return process.log.read_text(encoding="utf-8", errors="replace")


def _seconds(steps: list[dict[str, Any]]) -> list[float]:
    """From each commit to the next one."""
    return [after["time"] - before["time"] for before, after in itertools.pairwise(steps)]


def _outer(number: int, counter: str = "rx") -> int:
    """Bytes that the bridge has received from a machine (rx), or sent to it (tx)."""
    return int(Path(f"/sys/class/net/swf{number}/statistics/{counter}_bytes").read_text(encoding="utf-8"))


def _shown(seconds: list[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in seconds) + " s"


if __name__ == "__main__":
    with terminable():
        raise SystemExit(main())
