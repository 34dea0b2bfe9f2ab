"""The demonstration from its start to its end: a swarm starts, trains, loses a peer, goes on, and its model is used."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from swarmflow.demo.corpus import write_corpus
from swarmflow.demo.sample import sample
from swarmflow.demo.screen import Screen
from swarmflow.errors import SwarmflowError
from swarmflow.local.swarm import LocalProcess, LocalSwarm, terminable

STAGES = 3
PEERS = 6
TRAINERS = 2
SERVE_S = 90.0
TRAIN_S = 420.0
# The loss of one step is noisy; the final loss is the mean of a few.
LAST_STEPS = 5
PROMPT = "def "
SAMPLE_TOKENS = 160


def tell(out: Path, steps: int) -> int:
    """Run the demonstration; the model goes to `out`. Returns the exit code 0, or raises SwarmflowError."""
    with terminable(), Screen(steps) as screen:
        folder = Path(tempfile.mkdtemp(prefix="swarmflow-demo-"))
        try:
            with LocalSwarm(folder, _settings(folder / "corpus.txt", steps)) as swarm:
                size = write_corpus(folder / "corpus.txt")
                screen.say(f"The corpus: {size / 1e6:.1f} MB of this machine's own Python standard library, as bytes.")
                _start(swarm, screen)
                victim = _train(swarm, screen, steps)
            _conclude(swarm.steps(), victim, screen)
            model = _keep(swarm.output / "final", out)
        except SwarmflowError as error:
            for note in getattr(error, "__notes__", ()):
                screen.say(note)
            raise SwarmflowError(f"the demo failed: {error}; all logs are in {folder}") from error
        except KeyboardInterrupt:
            shutil.rmtree(folder)
            raise
        shutil.rmtree(folder)
    screen.say(f"\nWhat it writes after {PROMPT!r}, with plain transformers:\n", style="bold")
    screen.say(sample(model, PROMPT, SAMPLE_TOKENS))
    screen.say(f"\nThe model, a Hugging Face checkpoint: {model}", style="bold")
    return 0


def _settings(corpus: Path, steps: int) -> dict[str, dict[str, Any]]:
    config = {
        "model_type": "llama",
        "hidden_size": 160,
        "intermediate_size": 448,
        "num_hidden_layers": 6,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "vocab_size": 256,
        "max_position_embeddings": 512,
    }
    return {
        "run": {"name": "demo", "output": "out"},
        "model": {"config": config, "stages": STAGES},
        "data": {"path": corpus.name, "tokenizer": "bytes", "seq_len": 128, "order": "shuffled"},
        "optimizer": {"name": "adamw", "lr": 3e-3, "schedule": "cosine", "warmup_steps": 5},
        "train": {
            "steps": steps,
            "microbatches": 8,
            "microbatch_sequences": 4,
            "checkpoint_every": max(20, steps // 2),
        },
    }


def _start(swarm: LocalSwarm, screen: Screen) -> None:
    screen.say(f"Starting {TRAINERS} trainers and {PEERS} peers, each a process of its own ...")
    swarm.start_trainer()
    screen.say(f"The invite: {swarm.invite}")
    for number in range(PEERS):
        # Named here, so that two serve each stage however fast this machine starts them; elsewhere auto does it.
        swarm.start_peer(stage=number % STAGES)
    for _ in range(TRAINERS - 1):
        swarm.start_trainer()
    swarm.wait_steps(1, SERVE_S)


def _train(swarm: LocalSwarm, screen: Screen, steps: int) -> LocalProcess:
    """Follow the run to its end; return the peer that was killed."""
    victim = swarm.peers[1]

    def reached(count: int) -> bool:
        done = swarm.steps()
        if done:
            screen.show(done[-1])
        return len(done) >= count

    swarm.wait(lambda: reached(steps // 3), f"{steps // 3} steps", TRAIN_S)
    victim.kill()
    screen.say(f"SIGKILL to {victim.name} (process {victim.pid}), amid its work.", style="bold red")
    swarm.wait(lambda: reached(steps), "the last step", TRAIN_S)
    swarm.wait_finished(SERVE_S)
    return victim


def _conclude(steps: list[dict[str, Any]], victim: LocalProcess, screen: Screen) -> None:
    last = [step["loss"] for step in steps[-LAST_STEPS:]]
    if len({step["microbatches"] for step in steps}) != 1:
        raise SwarmflowError("a step was committed without all of its microbatches")
    count = steps[-1]["microbatches"]
    screen.say(
        f"{victim.name} died and nothing was lost: each of the {len(steps)} steps has all of its {count} microbatches."
    )
    end = f"{sum(last) / len(last):.3f} at the end (mean of {len(last)} steps)"
    screen.say(f"Loss {steps[0]['loss']:.3f} at the start, {end}.", style="bold")


def _keep(final: Path, out: Path) -> Path:
    """Move the model to `out`, or to the first of out-2, out-3, ... that is free, so that nothing is overwritten."""
    number, place = 1, out.absolute()
    while os.path.lexists(place):
        number += 1
        place = out.absolute().with_name(f"{out.name}-{number}")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(final, place)
    return place
