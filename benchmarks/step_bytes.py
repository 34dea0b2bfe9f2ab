"""What a step sends: `python -m benchmarks.step_bytes [--write]`.

A swarm of real processes, 2 stages of 2 peers each, with fp32 sums and with those of `reduce_codec = "blockwise16"`:
the bytes that its peers have sent, by their metrics, a step. `--write` puts the table into the pages that show it. See
README.md beside this file.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import sys
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.reduce_codec import MODEL
from swarmflow.compute.families import model_config
from swarmflow.compute.layout import stage_layout
from swarmflow.demo.corpus import write_corpus
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm, terminable

STAGES, PEERS, MICROBATCHES, SEQUENCES, SEQ_LEN = 2, 4, 16, 1, 32
WARMUP, STEPS = 5, 100
WANTED_BYTES = 2.2  # a parameter and direction in the all-reduce of two peers
RUN_S = 300.0
CUT = (2,)
HOPS, SUMS = ("Forward", "Backward"), ("ReducePart", "ReduceSum")
CODECS = ("none", "blockwise16")
ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "benchmarks" / "README.md")  # that show the table
HEAD = """| bytes that a peer sends | a parameter, in the all-reduce | a microbatch, activations and gradients |
|---|---|---|
"""
_ROW = re.compile(r'\| `reduce_codec = "(\w+)"` \| ([\d.]+) \| ([\d,]+) \|\n')


Reading = tuple[int, Counter[str]]
"""How many steps are committed, and the bytes that a peer has sent, by the kind of message."""


@dataclass(frozen=True)
class SentBytes:
    """What a peer sends with a reduce_codec: bytes a parameter in the all-reduce, and a microbatch in the pipeline."""

    reduce_codec: str
    a_parameter: float
    a_microbatch: float

    def __str__(self) -> str:
        return f'| `reduce_codec = "{self.reduce_codec}"` | {self.a_parameter:.2f} | {self.a_microbatch:,.0f} |\n'


def table(rows: Sequence[SentBytes]) -> str:
    """Return the rows as the pages show them."""
    return HEAD + "".join(map(str, rows))


def shown(page: str) -> list[SentBytes]:
    """Return the rows of the table that a page shows."""
    [_, rest] = page.split(HEAD)
    rows = []
    while row := _ROW.match(rest):
        rows.append(SentBytes(row[1], float(row[2]), float(row[3].replace(",", ""))))
        rest = rest[row.end() :]
    return rows


def write(rows: Sequence[SentBytes]) -> None:
    """Put the table into the pages that show it."""
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        path.write_text(page.replace(table(shown(page)), table(rows)), encoding="utf-8")


def settings(corpus: Path, reduce_codec: str) -> dict[str, dict[str, Any]]:
    """RUN.toml: more steps than are needed."""
    return {
        "run": {"name": "bytes", "output": "out"},
        "model": {"config": MODEL, "cut": list(CUT)},
        "data": {"path": str(corpus), "tokenizer": "bytes", "seq_len": SEQ_LEN},
        "optimizer": {"name": "adamw", "lr": 3e-4},
        "train": {
            "steps": 100_000,
            "microbatches": MICROBATCHES,
            "microbatch_sequences": SEQUENCES,
            "reduce_codec": reduce_codec,
            "checkpoint_every": 100_000,
        },
    }


def sent(peer: LocalProcess) -> Counter[str]:
    """The bytes that a peer has sent, by the kind of message."""
    address = re.search(r"http://[\d.]+:\d+/metrics", peer.log.read_text(encoding="utf-8"))
    if address is None:
        raise RuntimeError(f"{peer.name} has not said where its metrics are")
    with urllib.request.urlopen(address[0], timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode("utf-8")))
    samples = (sample for family in families for sample in family.samples)
    sizes = ((sample.labels["kind"], sample.value) for sample in samples if sample.name == "swarmflow_sent_bytes_total")
    found: Counter[str] = Counter()
    for kind, size_bytes in sizes:
        found[kind] += int(size_bytes)
    return found


def measure(
    folder: Path, reduce_codec: str, steps: int = STEPS, forks: ForkServer | None = None
) -> list[dict[str, float]]:
    """Return the bytes a step of each peer, by the kind of message."""
    corpus = folder / "corpus.txt"
    write_corpus(corpus)
    with LocalSwarm(folder / "swarm", settings(corpus, reduce_codec), forks=forks) as swarm:
        swarm.start_trainer()
        for number in range(PEERS):
            swarm.start_peer("--metrics-port", "0", "--no-copies", stage=number % STAGES)
        full = [PEERS // STAGES] * STAGES
        swarm.wait(lambda: full in (step["peers"] for step in swarm.steps()), "a step with all peers", RUN_S)
        first = next(step["step"] for step in swarm.steps() if step["peers"] == full)
        swarm.wait_steps(first + WARMUP, RUN_S)
        readings: list[list[Reading]] = [[] for _ in swarm.peers]

        def finished() -> bool:
            for peer, found in zip(swarm.peers, readings, strict=True):
                found.append((len(swarm.steps()), sent(peer)))
            return all(max(known, default=0) - min(known, default=0) >= steps for known in map(at_work, readings))

        swarm.wait(finished, f"{steps} steps", RUN_S)
    return [bytes_a_step(at_work(found)) for found in readings]


def at_work(readings: Sequence[Reading]) -> dict[int, Counter[str]]:
    """Return what a peer had sent amid the microbatches of each step, by the number of steps before it.

    Between two readings it has sent tensors of microbatches, and nothing of an all-reduce: that of the step before is
    over, and its own has not begun.
    """
    return {
        steps: after
        for (earlier, before), (steps, after) in itertools.pairwise(readings)
        if steps == earlier and _of(SUMS, before) == _of(SUMS, after) and _of(HOPS, before) < _of(HOPS, after)
    }


def bytes_a_step(known: dict[int, Counter[str]]) -> dict[str, float]:
    """Return the mean bytes of a step, by the kind of message."""
    first, last = min(known), max(known)
    return {kind: (known[last][kind] - known[first][kind]) / (last - first) for kind in known[last]}


def _of(kinds: Sequence[str], found: Counter[str]) -> int:
    return sum(found[kind] for kind in kinds)


def stage_parameters() -> list[int]:
    """Return the number of parameters of each stage."""
    return [stage_layout(model_config(MODEL), CUT, stage).parameters for stage in range(STAGES)]


def sent_bytes(reduce_codec: str, peers: Sequence[dict[str, float]]) -> SentBytes:
    """Return the means of what was measured."""
    parameters = stage_parameters()
    sums = [sum(peer.get(kind, 0.0) for kind in SUMS) / parameters[n % STAGES] for n, peer in enumerate(peers)]
    hops = sum(peer.get(kind, 0.0) for peer in peers for kind in HOPS) / MICROBATCHES
    return SentBytes(reduce_codec, statistics.mean(sums), hops)


def main() -> int:
    """Print the table; 1 where blockwise16 takes more than is wanted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_bytes", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into README.md and benchmarks/README.md")
    options = parser.parse_args()
    parameters = sum(stage_parameters())
    print(f"2 stages of 2 peers, {parameters:,} parameters, {MICROBATCHES} microbatches of {SEQ_LEN} tokens a step\n")
    rows = []
    for reduce_codec in CODECS:
        with terminable(), TemporaryDirectory() as folder:
            rows.append(sent_bytes(reduce_codec, measure(Path(folder), reduce_codec)))
    print(table(rows), end="")
    if options.write:
        write(rows)
    return 0 if rows[-1].a_parameter <= WANTED_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
