"""Tokens/s of a swarm beside plain PyTorch on the same cores: `python -m benchmarks.throughput`.

The swarm has 2 stages with one peer of one thread each, the plain process 2 threads; torch.distributed.pipelining has 2
processes of one thread. They run in turn, so that what else the machine does hits all alike; the ratios of their
medians are what counts. See README.md beside this file.
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
from swarmflow.runtime.execution.heap import heap_environment

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
    pipelining_tokens_per_s: list[float]
    swarm_tokens_per_s: list[float]
    peaks: list[Peak]
    idle_peaks: list[Peak]

    @property
    def ratio(self) -> float:
        """The swarm's tokens/s over the plain process'."""
        return statistics.median(self.swarm_tokens_per_s) / statistics.median(self.plain_tokens_per_s)

    @property
    def pipelining_ratio(self) -> float:
        """The swarm's tokens/s over those of torch.distributed.pipelining."""
        return statistics.median(self.swarm_tokens_per_s) / statistics.median(self.pipelining_tokens_per_s)


def measure(folder: Path, work: Work, rounds: int) -> ThroughputReport:
    """Runs the three in turn, `rounds` times, then a swarm with nothing to do for the memory of an idle peer."""
    load_before = os.getloadavg()[0]
    corpus = folder / "corpus.txt"
    write_corpus(corpus)
    plain: list[float] = []
    pipelining: list[float] = []
    swarm: list[float] = []
    peak = PeakMemory()
    for number in range(rounds):
        plain += run_plain(folder, corpus, work)
        print(f"plain {number}: {_rates(plain)} tokens/s", flush=True)
        pipelining += run_pipelining(folder, corpus, work, number)
        print(f"pipelining {number}: {_rates(pipelining)} tokens/s", flush=True)
        swarm += run_swarm(folder / f"swarm-{number}", corpus, work, peak)
        print(f"swarm {number}: {_rates(swarm)} tokens/s", flush=True)
    idle = PeakMemory()
    run_swarm(folder / "idle", corpus, Work(SMALL_MODEL, steps=2, microbatches=2, seq_len=8), idle)
    load = f"load average before {load_before:.1f}"
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {load}"
    return ThroughputReport(
        machine, work, _parameters(work), plain, pipelining, swarm, _peaks(peak, idle, work), _plain_peaks(idle)
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
    return _step_rates(done.stdout)


def run_pipelining(folder: Path, corpus: Path, work: Work, number: int) -> list[float]:
    """Tokens/s of each step but the first of torch.distributed.pipelining, with the heap that a peer has."""
    chosen, rendezvous = folder / "pipelining.json", folder / f"rendezvous-{number}"
    settings = {**asdict(work), "corpus": str(corpus), "optimizer": OPTIMIZER, "rendezvous": str(rendezvous)}
    chosen.write_text(json.dumps(settings), encoding="utf-8")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.pipelining", str(chosen), str(rank)],
            env={**os.environ, **heap_environment(), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(STAGES)
    ]
    try:
        written = [rank.communicate(timeout=RUN_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("torch.distributed.pipelining has failed")
    return _step_rates(written[-1])


def _step_rates(lines: str) -> list[float]:
    steps = [json.loads(line) for line in lines.splitlines()]
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
    for name, rates, processes in (
        ("plain", report.plain_tokens_per_s, f"1 process, {CORES} threads"),
        ("1f1b", report.pipelining_tokens_per_s, "torch.distributed.pipelining, gloo, 2 processes of one thread"),
        ("swarm", report.swarm_tokens_per_s, "2 peers of one thread, 1 trainer"),
    ):
        print(f"{name:6s} {statistics.median(rates):8.0f} tokens/s (median), {processes}")
    print(f"ratio  {report.ratio:8.3f} to plain (wanted: at least {RATIO_WANTED:.2f})")
    print(f"ratio  {report.pipelining_ratio:8.3f} to torch.distributed.pipelining\n")
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
        ratios = {"ratio": report.ratio, "pipelining_ratio": report.pipelining_ratio}
        options.json.write_text(json.dumps({**asdict(report), **ratios}, indent=2), encoding="utf-8")
    fits = all(row.limit_mb is None or row.own_mb <= row.limit_mb for row in report.peaks)
    return 0 if fits and report.ratio >= RATIO_WANTED else 1


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
