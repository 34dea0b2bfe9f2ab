"""Local swarms for the tests: the settings of a run that the reference can repeat, and its usual processes."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swarmflow.local.swarm import LocalSwarm
from tests.swarm.reference import Recipe, save_model

STAGES = 3
FINISH_S = 150.0
LONG = 2000  # steps of a run that is ended by its test
SHARED_STEPS = 10  # steps of all peers, at least, before what was learnt is compared
TINY_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 32,
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.1},
    "adamw": {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-3, "weight_decay": 0.1},
}


def recipe(optimizer: str, **changes: int) -> Recipe:
    """20 steps of 8 microbatches of 2 x 32 tokens, where nothing else is asked for."""
    sizes = {"steps": 20, "seq_len": 32, "microbatches": 8, "sequences": 2, **changes}
    return Recipe(optimizer=OPTIMIZERS[optimizer], **sizes)


def prepare(folder: Path, family: str, corpus_bytes: int = 6000) -> tuple[Path, Path]:
    """Writes a model and a corpus: (the model's folder, the file). The default corpus is read twice in 20 steps."""
    model, corpus = folder / "init", folder / "corpus.txt"
    save_model(family, model)
    text = Path(json.__file__).with_name("decoder.py").read_bytes() + Path(textwrap.__file__).read_bytes()
    corpus.write_bytes(text[:corpus_bytes])
    return model, corpus


def settings(model: Path, corpus: Path, of: Recipe, *, codec: str = "none", stages: int = STAGES) -> dict[str, Any]:
    """RUN.toml for a run that does what the recipe says."""
    return {
        "run": {"name": "test", "output": "out"},
        "model": {"path": str(model), "stages": stages},
        "data": {"path": str(corpus), "tokenizer": "bytes", "seq_len": of.seq_len, "order": "sequential"},
        "optimizer": of.optimizer,
        "train": {
            "steps": of.steps,
            "microbatches": of.microbatches,
            "microbatch_sequences": of.sequences,
            "precision": "fp32",
            "codec": codec,
            "reduce_codec": "none",  # as the plain loop adds up; test_reduce_codec.py has the other one
            "checkpoint_every": of.steps,
        },
    }


def learnt_by_all(swarm: LocalSwarm, peers: list[int]) -> int:
    """Waits for a step that so many peers of each stage share, and for a checkpoint 10 steps later: its version.

    However late a process starts on a busy machine, versions follow that all have made together.
    """
    swarm.wait(lambda: peers in (step["peers"] for step in swarm.steps()), "a step with all peers", FINISH_S)
    least = len(swarm.steps()) + SHARED_STEPS
    version = swarm.wait(lambda: exported(swarm.output, least), "a checkpoint after it", FINISH_S)
    assert swarm.steps()[version - 1]["peers"] == peers
    return version


def exported(output: Path, least: int) -> int | None:
    """The first version from this one on that the output folder holds as `step-N`."""
    versions = (int(folder.name.removeprefix("step-")) for folder in output.glob("step-*"))
    return min((version for version in versions if version >= least), default=None)


def start(
    swarm: LocalSwarm, *, trainers: int, peers: int, trainer_options: Sequence[str] = (), both_memories: bool = False
) -> None:
    """Starts them all, the peers spread evenly over the stages, without waiting until they serve.

    both_memories: all but the first peer of each stage have their state in the memory of the host.
    """
    for _ in range(trainers):
        swarm.start_trainer(*trainer_options)
    for number in range(peers):
        state = ("--state", "host") if both_memories and number >= STAGES else ()
        swarm.start_peer(*state, stage=number % STAGES)
