"""Tokens/s of a swarm beside one plain PyTorch process on the same cores: `python -m benchmarks.throughput`.

The swarm has 2 stages with one peer of one thread each, the plain process 2 threads. Both run in turn, so that what
else the machine does hits both alike; the ratio of their medians is what counts. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.memory import PeakMemory, stage_bytes
from swarmflow.demo.corpus import write_corpus
from swarmflow.local.swarm import LocalSwarm, terminable

STAGES = 2
CORES = 2
RATIO_WANTED = 0.90
MEMORY_FACTOR = 1.15
MEGA = 1e6
RUN_S = 900.0
OPTIMIZER = {"name": "adamw", "lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}
MODEL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}
# Next to nothing to hold: what its processes take is what any process takes.
SMALL_MODEL = {**MODEL, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}


@dataclass(frozen=True)
class Work:
    """A run to measure: its sizes, and how many microbatches a peer may hold."""

    model: dict[str, Any]
    steps: int
    microbatches: int = 32
    sequences: int = 1
    seq_len: int = 128
    capacity: int = 4

    @property
    def cut(self) -> tuple[int, ...]:
        """Half of the blocks on each stage: with a vocabulary of bytes, embedding and head cost nothing."""
        return (self.model["num_hidden_layers"] // STAGES,)


@dataclass(frozen=True)
class Peak:
    """Peak memory in MB: of the process, of its network daemon, and the most that the process should take."""

    process: str
    own_mb: float
    daemon_mb: float
    limit_mb: float | None = None


@dataclass(frozen=True)
class ThroughputReport:
    """What was measured: tokens/s of each step but the first of each run, in the order in which they were run."""

    machine: str
    work: Work
    parameters: int
    plain_tokens_per_s: list[float]
    swarm_tokens_per_s: list[float]
    peaks: list[Peak]
    idle_peaks: list[Peak]

    @property
    def ratio(self) -> float:
        return statistics.median(self.swarm_tokens_per_s) / statistics.median(self.plain_tokens_per_s)


def measure(folder: Path, work: Work, rounds: int) -> ThroughputReport:
    """Runs plain and swarm in turn, `rounds` times, then a swarm with nothing to do for the memory of an idle peer."""
    load_before = os.getloadavg()[0]
    corpus = folder / "corpus.txt"
    write_corpus(corpus)
    plain: list[float] = []
    swarm: list[float] = []
    peak = PeakMemory()
    for number in range(rounds):
        plain += run_plain(folder, corpus, work)
        print(f"plain {number}: {_rates(plain)} tokens/s", flush=True)
        swarm += run_swarm(folder / f"swarm-{number}", corpus, work, peak)
        print(f"swarm {number}: {_rates(swarm)} tokens/s", flush=True)
    idle = PeakMemory()
    run_swarm(folder / "idle", corpus, Work(SMALL_MODEL, steps=2, microbatches=2, seq_len=8), idle)
    load = f"load average before {load_before:.1f}"
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {load}"
    return ThroughputReport(
        machine, work, _parameters(work), plain, swarm, _peaks(peak, idle, work), _plain_peaks(idle)
    )


def run_plain(folder: Path, corpus: Path, work: Work) -> list[float]:
    """Tokens/s of each step but the first, in one process with a thread a core."""
    chosen = folder / "plain.json"
    settings = {**asdict(work), "corpus": str(corpus), "threads": CORES, "optimizer": OPTIMIZER}
    chosen.write_text(json.dumps(settings), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.plain", str(chosen)],
        env={**os.environ, "OMP_NUM_THREADS": str(CORES)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=RUN_S,
        check=True,
    )
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    return [step["tokens"] / step["seconds"] for step in steps[1:]]


def run_swarm(folder: Path, corpus: Path, work: Work, peak: PeakMemory) -> list[float]:
    """Tokens/s of each step but the first, from commit to commit: nothing between two steps is left out."""
    with LocalSwarm(folder, settings(corpus, work), threads=1) as swarm:
        swarm.start_trainer()
        for stage in range(STAGES):
            swarm.start_peer("--capacity", str(work.capacity), stage=stage)

        def finished() -> bool:
            peak.sample((process.name, process.pid) for process in swarm.processes)
            return all(process.exit_code is not None for process in swarm.processes)

        swarm.wait(finished, "the end of the run", RUN_S)
        steps = swarm.steps()
    return [after["tokens"] / (after["time"] - before["time"]) for before, after in itertools.pairwise(steps)]


def settings(corpus: Path, work: Work) -> dict[str, dict[str, Any]]:
    """RUN.toml."""
    return {
        "run": {"name": "throughput", "output": "out"},
        "model": {"config": work.model, "cut": work.cut},
        "data": {"path": str(corpus), "tokenizer": "bytes", "seq_len": work.seq_len},
        "optimizer": OPTIMIZER,
        "train": {
            "steps": work.steps,
            "microbatches": work.microbatches,
            "microbatch_sequences": work.sequences,
            "codec": "blockwise8",
            "checkpoint_every": work.steps,
        },
    }


def _peaks(peak: PeakMemory, idle: PeakMemory, work: Work) -> list[Peak]:
    """A peer's limit: what an idle peer takes, and 1.15 times its tensors. The last stage keeps no graph but one."""
    shape = (work.sequences, work.seq_len)
    rows = []
    for name, own in peak.own_bytes.items():
        limit = None
        if name.startswith("peer"):
            stage = int(name.removeprefix("peer-"))
            held = work.capacity if stage < STAGES - 1 else 1
            tensors = stage_bytes(work.model, work.cut, stage, shape, held)
            limit = (MEMORY_FACTOR * tensors + idle.own_bytes[name]) / MEGA
        rows.append(Peak(name, own / MEGA, peak.children_bytes[name] / MEGA, limit))
    return rows


def _plain_peaks(peak: PeakMemory) -> list[Peak]:
    return [Peak(name, own / MEGA, peak.children_bytes[name] / MEGA) for name, own in peak.own_bytes.items()]


def _parameters(work: Work) -> int:
    """The model's, without making it: its stages on the meta device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM  # untyped in transformers
    with torch.device("meta"):
        model = factory.from_config(AutoConfig.for_model(**work.model))
    return sum(parameter.numel() for parameter in model.parameters())


def _rates(rates: list[float]) -> str:
    return " ".join(f"{rate:.0f}" for rate in rates)


def _print(report: ThroughputReport) -> None:
    work = report.work
    print(f"\n{report.machine}; {report.parameters / 1e6:.1f} M parameters, a step of {work.microbatches} microbatches")
    print(f"of {work.sequences} x {work.seq_len} tokens, blockwise8, {STAGES} stages of one thread each\n")
    print(f"plain  {statistics.median(report.plain_tokens_per_s):8.0f} tokens/s (median), 1 process, {CORES} threads")
    print(f"swarm  {statistics.median(report.swarm_tokens_per_s):8.0f} tokens/s (median)")
    print(f"ratio  {report.ratio:8.3f} (wanted: at least {RATIO_WANTED:.2f})\n")
    print("peak memory, MB        process  p2pd   limit  (with a model of next to nothing)")
    idle = {row.process: row.own_mb for row in report.idle_peaks}
    for row in report.peaks:
        limit = "" if row.limit_mb is None else f"{row.limit_mb:.0f}"
        print(f"  {row.process:20s} {row.own_mb:7.0f} {row.daemon_mb:5.0f} {limit:>7s}  ({idle[row.process]:.0f})")


def main() -> int:
    """0 when the ratio and the memory are as wanted, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of few steps: a first impression")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured here")
    options = parser.parse_args()
    work, rounds = Work(MODEL, steps=3 if options.quick else 6), 1 if options.quick else 2
    with tempfile.TemporaryDirectory(prefix="swarmflow-benchmark-") as folder:
        report = measure(Path(folder), work, rounds)
    _print(report)
    if options.json is not None:
        options.json.write_text(json.dumps({**asdict(report), "ratio": report.ratio}, indent=2), encoding="utf-8")
    fits = all(row.limit_mb is None or row.own_mb <= row.limit_mb for row in report.peaks)
    return 0 if fits and report.ratio >= RATIO_WANTED else 1


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
