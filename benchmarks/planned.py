"""What placement by a plan of the links gives: `python -m benchmarks.planned` (Linux, root).

Six real peers in two regions train two stages, over links that the kernel shapes: fast within a region, slow between
the two. The same swarm runs with `placement = "auto"` and with `placement = "planned"`; printed are tokens a second of
both, and their ratio in this run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fidelity import MODEL, OPTIMIZER
from benchmarks.shaped import inside, machines, unavailable
from swarmflow.demo.corpus import write_corpus
from swarmflow.local.swarm import LocalSwarm, terminable

STAGES, REGIONS = 2, {"a": 3, "b": 3}  # peers of each
NEAR_MBPS, FAR_MBPS, TRAINER_MBPS = 40.0, 4.0, 1000.0
MICROBATCHES, SEQ_LEN = 80, 128
RUN_S = 900.0
RATIO_WANTED = 1.3


def main() -> int:
    """0 where the ratio is as wanted, else 1; 2 where it cannot be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planned", description=__doc__)
    parser.add_argument("--steps", type=int, default=12, help="that are measured")
    parser.add_argument("--warmup", type=int, default=10, help="steps before them, with all peers")
    parser.add_argument("--by-turns", action="store_true", help="peers start by turns, not one region after the other")
    options = parser.parse_args()
    reason = unavailable()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    names = [f"{region}{number}" for region, count in REGIONS.items() for number in range(count)]
    if options.by_turns:
        names.sort(key=lambda name: name[1:])
    tokens_s: dict[str, float] = {}
    for placement in ("auto", "planned"):
        tokens_s[placement] = measure(placement, names, options.steps, options.warmup)
        print(f"{placement:8} {tokens_s[placement]:8.0f} tokens/s", flush=True)
    ratio = tokens_s["planned"] / tokens_s["auto"]
    print(f"planned / auto {ratio:.2f} ({RATIO_WANTED} wanted)")
    return int(ratio < RATIO_WANTED)


def between(one: str, other: str) -> float:
    """The Mb/s from one machine to another one."""
    if "trainer-0" in (one, other):
        return TRAINER_MBPS
    return NEAR_MBPS if one[0] == other[0] else FAR_MBPS


def settings(corpus: Path, placement: str) -> dict[str, dict[str, Any]]:
    """RUN.toml: sums that are large beside the activations."""
    model = {**MODEL, "num_hidden_layers": 8}
    train = {"steps": 1000, "microbatches": MICROBATCHES, "microbatch_sequences": 1, "placement": placement}
    return {
        "run": {"name": "planned", "output": "out"},
        "model": {"config": model, "cut": [4]},
        "data": {"path": str(corpus), "tokenizer": "bytes", "seq_len": SEQ_LEN},
        "optimizer": OPTIMIZER,
        "train": {**train, "checkpoint_every": 1000},
    }


def measure(placement: str, names: list[str], steps: int, warmup: int) -> float:
    """Tokens a second, over the middle of so many steps. names: of the peers, in the order in which they start."""
    peers = [f"peer-{number}" for number in range(len(names))]
    region_of = {"trainer-0": "trainer-0", **dict(zip(peers, names, strict=True))}
    with (
        tempfile.TemporaryDirectory(prefix="swarmflow-planned-") as folder,
        machines(["trainer-0", *peers], TRAINER_MBPS, lambda a, b: between(region_of[a], region_of[b])) as addresses,
    ):
        corpus = Path(folder) / "corpus.txt"
        write_corpus(corpus)
        within = {name: inside(name) for name in addresses}
        with LocalSwarm(Path(folder) / "swarm", settings(corpus, placement), within=within) as swarm:
            swarm.start_trainer("--listen", f"{addresses['trainer-0']}:0")
            for number, peer in enumerate(peers):
                chosen = ("--capacity", "6", "--rebalance-period", "60", "--no-copies")
                swarm.start_peer("--listen", f"{addresses[peer]}:0", *chosen)
                swarm.wait(lambda number=number: served(swarm) > number, f"{peer} to have a stage", RUN_S)  # type: ignore[misc]
            swarm.wait(lambda: any(sum(step["peers"]) == len(peers) for step in swarm.steps()), "all peers", RUN_S)
            first = next(step["step"] for step in swarm.steps() if sum(step["peers"]) == len(peers)) + warmup
            print("all peers from step", first - warmup, flush=True)
            found = swarm.wait_steps(first + steps, RUN_S)[first : first + steps]
    print([round(step["seconds"], 1) for step in found], [step["peers"] for step in found][-1])
    seconds: float = statistics.median(step["seconds"] for step in found)
    return MICROBATCHES * SEQ_LEN / seconds


def served(swarm: LocalSwarm) -> int:
    """How many peers have been granted a stage."""
    return sum("granted stage" in peer.log.read_text(encoding="utf-8") for peer in swarm.peers)


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
