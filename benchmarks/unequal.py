"""What a cut for unlike machines gives: `python -m benchmarks.unequal` (Linux, root).

One peer with three times the memory and the share of a processor of each of two others, all real processes, trains a
model in the best even cut that fits them, and in the one that `swarmflow plan --cut` finds. Printed are tokens a second
of both and their ratio in this run, and how far the parameters of each are from those of a plain PyTorch loop.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from benchmarks import quota
from swarmflow.chaos.compare import compare_within, order_limits
from swarmflow.chaos.plain import Recipe, load_model, parameters, train, write_model
from swarmflow.config import load
from swarmflow.demo.corpus import write_corpus
from swarmflow.local.swarm import LocalSwarm, terminable, toml_text
from swarmflow.planning.cut import PlannedStage, bottleneck
from swarmflow.plans.cutting import FoundCut, MachineKind, find_cut
from trainers.plan import first_batch

MODEL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 10,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}
FAST, SLOW, TIMES = 1, 2, 3.0  # machines of each kind; the fast one has so many times as much of everything
CORES = 0.15  # of a processor, of a slow one
MEMORY_BYTES = 240_000_000  # of a slow one, for its stage and microbatches: three of the ten blocks fit, and not four
# What else a peer's process takes on a CPU: modules, buffers, the daemon (docs/operators.md), and what is kept for
# repairs.
JOURNAL_BYTES, PROCESS_BYTES = 64_000_000, 660_000_000
SEQ_LEN, MICROBATCHES, WARMUP = 64, 16, 2
OPTIMIZER = {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-3, "weight_decay": 0.1}
RUN_S = 900.0
RATIO_WANTED = 1.25


@dataclass(frozen=True)
class CutRun:
    """What came of a run: its speed, and whether it has the parameters of the plain loop."""

    tokens_s: float
    same: bool
    line: str


def main() -> int:
    """0 where the ratio is as wanted and the parameters are right, else 1; 2 where it cannot be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unequal", description=__doc__)
    parser.add_argument("--steps", type=int, default=4, help=f"that are measured, after {WARMUP}")
    steps = parser.parse_args().steps + WARMUP
    reason = quota.unavailable()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="swarmflow-unequal-") as name:
        folder = Path(name)
        model, corpus = folder / "init", folder / "corpus.txt"
        write_model(AutoConfig.for_model(**MODEL), model)
        write_corpus(corpus)
        planned = plan(folder, settings(model, corpus, steps, ()))
        recipe = Recipe(steps, SEQ_LEN, MICROBATCHES, 1, OPTIMIZER)
        wanted = train(model, corpus, recipe)[0]
        limits = order_limits(wanted, train(model, corpus, recipe, reverse=True)[0])
        found: list[CutRun] = []
        for kind, stages in (("even", planned.even), ("planned", planned.stages)):
            cut = [stage.first for stage in stages[1:]]
            tokens_s, learnt = measure(folder / kind, settings(model, corpus, steps, cut), stages)
            comparison = compare_within(learnt, wanted, limits, "the plain loop")
            found.append(CutRun(tokens_s, comparison.holds, str(comparison)))
            print(f"{kind:8} cut {cut}: {tokens_s:7.1f} tokens/s; parameters: {comparison}", flush=True)
    ratio = found[1].tokens_s / found[0].tokens_s
    expected = bottleneck(planned.even) / bottleneck(planned.stages)
    print(f"planned / even {ratio:.2f} ({RATIO_WANTED} wanted; {expected:.2f} by the plan)")
    return int(ratio < RATIO_WANTED or not all(each.same for each in found))


def settings(model: Path, corpus: Path, steps: int, cut: Sequence[int]) -> dict[str, dict[str, Any]]:
    """RUN.toml. Boundary tensors and sums travel as they are, as the plain loop has them."""
    return {
        "run": {"name": "unequal", "output": "out"},
        "model": {"path": str(model), "cut": list(cut) or [1]},
        "data": {"path": str(corpus), "tokenizer": "bytes", "seq_len": SEQ_LEN, "order": "sequential"},
        "optimizer": OPTIMIZER,
        "train": {
            "steps": steps,
            "microbatches": MICROBATCHES,
            "microbatch_sequences": 1,
            "precision": "fp32",
            "codec": "none",
            "reduce_codec": "none",
            "checkpoint_every": steps,
        },
    }


def plan(folder: Path, run: dict[str, dict[str, Any]]) -> FoundCut:
    """Cut the model for the machines as a user does."""
    file = folder / "RUN.toml"
    file.write_text(toml_text(run), encoding="utf-8")
    kinds = [
        MachineKind(f"{FAST} fast", FAST, round(TIMES * MEMORY_BYTES), TIMES),
        MachineKind(f"{SLOW} slow", SLOW, MEMORY_BYTES, 1.0),
    ]
    found = find_cut(load(file), kinds, None, 1, first_batch)
    for text, stages in (("even", found.even), ("planned", found.stages)):
        print(f"{text}: {[(stage.stop - stage.first, stage.machines) for stage in stages]} (blocks, fast and slow)")
    return found


def measure(
    folder: Path, run: dict[str, dict[str, Any]], stages: Sequence[PlannedStage]
) -> tuple[float, dict[str, Any]]:
    """Tokens a second over the middle step after the first ones, and the parameters at the end."""
    peers = [f"peer-{number}" for number in range(FAST + SLOW)]
    with ExitStack() as stack:
        stack.enter_context(quota.machines_of(TIMES * CORES, peers[:FAST]))
        stack.enter_context(quota.machines_of(CORES, peers[FAST:]))
        within = {name: quota.inside(name, number) for number, name in enumerate(peers)}
        with LocalSwarm(folder, run, within=within) as swarm:
            swarm.start_trainer()
            for number in range(len(peers)):
                memory = MEMORY_BYTES * (TIMES if number < FAST else 1.0)
                limit = f"{round(PROCESS_BYTES + JOURNAL_BYTES + memory)}B"
                swarm.start_peer("--memory-limit", limit, "--journal-bytes-max", str(JOURNAL_BYTES), "--no-copies")
            swarm.wait_finished(RUN_S)
            seconds = [step["seconds"] for step in swarm.steps()][WARMUP:]
            for peer in swarm.peers:
                line = next(line for line in peer.log.read_text().splitlines() if "is loaded at version" in line)
                print(f"  {peer.name} {line}")
            print(f"  seconds {[round(each, 1) for each in seconds]}, peers {swarm.steps()[-1]['peers']}")
            return MICROBATCHES * SEQ_LEN / statistics.median(seconds), parameters(load_model(swarm.output / "final"))


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
