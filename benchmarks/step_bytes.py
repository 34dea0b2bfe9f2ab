"""What a step sends: `python -m benchmarks.step_bytes`.

A swarm of real processes, 2 stages of 2 peers each, with fp32 sums and with those of `reduce_codec = "blockwise16"`:
the bytes that its peers have sent, by their metrics, a step. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.reduce_codec import MODEL
from swarmflow.compute.families import model_config
from swarmflow.compute.layout import stage_layout
from swarmflow.demo.corpus import write_corpus
from swarmflow.local.swarm import LocalProcess, LocalSwarm

STAGES, PEERS, MICROBATCHES, SEQUENCES, SEQ_LEN = 2, 4, 16, 1, 32
WARMUP, STEPS = 5, 100
WANTED_BYTES = 2.2  # a parameter and direction in the all-reduce of two peers
RUN_S = 300.0
CUT = (2,)
HOPS, SUMS = ("Forward", "Backward"), ("ReducePart", "ReduceSum")


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


def sent(peer: LocalProcess) -> tuple[int, Counter[str]]:
    """The version of a peer, and the bytes that it has sent, by the kind of message."""
    address = re.search(r"http://[\d.]+:\d+/metrics", peer.log.read_text(encoding="utf-8"))
    if address is None:
        raise RuntimeError(f"{peer.name} has not said where its metrics are")
    with urllib.request.urlopen(address[0], timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode("utf-8")))
    found: Counter[str] = Counter()
    version = 0
    for sample in (sample for family in families for sample in family.samples):
        if sample.name == "swarmflow_sent_bytes_total":
            found[sample.labels["kind"]] += int(sample.value)
        elif sample.name == "swarmflow_version":
            version = int(sample.value)
    return version, found


def measure(folder: Path, reduce_codec: str) -> list[dict[str, float]]:
    """Bytes a step of each peer, by the kind of message."""
    corpus = folder / "corpus.txt"
    write_corpus(corpus)
    with LocalSwarm(folder / "swarm", settings(corpus, reduce_codec)) as swarm:
        swarm.start_trainer()
        for number in range(PEERS):
            swarm.start_peer("--metrics-port", "0", "--no-copies", stage=number % STAGES)
        full = [PEERS // STAGES] * STAGES
        swarm.wait(lambda: full in (step["peers"] for step in swarm.steps()), "a step with all peers", RUN_S)
        first = next(step["step"] for step in swarm.steps() if step["peers"] == full)
        swarm.wait_steps(first + WARMUP, RUN_S)
        before = [sent(peer) for peer in swarm.peers]
        swarm.wait_steps(first + WARMUP + STEPS, RUN_S)
        after = [sent(peer) for peer in swarm.peers]
    return [
        {kind: (later[kind] - earlier[kind]) / (end - begin) for kind in later}
        for (begin, earlier), (end, later) in zip(before, after, strict=True)
    ]


def main() -> int:
    """Print the table; 1 where blockwise16 takes more than is wanted."""
    argparse.ArgumentParser(prog="python -m benchmarks.step_bytes", description=__doc__).parse_args()
    parameters = [stage_layout(model_config(MODEL), CUT, stage).parameters for stage in range(STAGES)]
    print(
        f"2 stages of 2 peers, {sum(parameters):,} parameters, {MICROBATCHES} microbatches of {SEQ_LEN} tokens a step"
    )
    print("bytes that a peer sends    a parameter, in the all-reduce    a microbatch, activations and gradients")
    worst = 0.0
    for reduce_codec in ("none", "blockwise16"):
        with TemporaryDirectory() as folder:
            peers = measure(Path(folder), reduce_codec)
        sums = [sum(peer.get(kind, 0.0) for kind in SUMS) / parameters[n % STAGES] for n, peer in enumerate(peers)]
        hops = sum(peer.get(kind, 0.0) for peer in peers for kind in HOPS) / MICROBATCHES
        print(f"{reduce_codec:25s} {statistics.mean(sums):30.2f} {hops:41,.0f}", flush=True)
        worst = max(sums)
    return 0 if worst <= WANTED_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
