"""The demonstration from its start to its end: a swarm starts, trains, loses a peer, goes on, and its model is used."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import textwrap
import time
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarmflow.demo.picture import Mark, draw
from swarmflow.demo.prose import VOCABULARY, write_prose, write_tokenizer
from swarmflow.demo.recorder import RunRecorder
from swarmflow.demo.sample import sample
from swarmflow.demo.screen import Screen
from swarmflow.demo.sentences import marks_of, sentence_of
from swarmflow.errors import ConfigError, SwarmflowError
from swarmflow.local.forkserver import CAN_FORK, ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm, environment, terminable
from swarmflow.runtime.operations.watching import asking_this_machine
from swarmflow.runtime.transport.identity import load_identity
from swarmflow.runtime.transport.invite import Invite

STAGES = 3
PEERS = 6
TRAINERS = 2
SERVE_S = 90.0
TRAIN_S = 420.0
BUSY_STEPS = 3  # within which a peer is found at work
NEWCOMER_STEPS = 60  # a shorter run is over before a newcomer is ready
# The loss of one step is noisy; the final loss is the mean of a few.
LAST_STEPS = 5
PROMPTS = ("The Python", "This function returns")
SAMPLE_TOKENS = 80
WIDTH = 96  # of the sampled text


def tell(out: Path, steps: int, *, keep_page: bool = False) -> int:
    """Run the demonstration; the model and the picture go to `out`. Returns 0, or raises SwarmflowError.

    keep_page: serve the page until Ctrl-C, when the run is over.
    """
    place = checked_place(out)  # before minutes of training
    with terminable(), Screen(steps) as screen, ExitStack() as pages:
        folder = Path(tempfile.mkdtemp(prefix="swarmflow-demo-"))
        try:
            text = _write_data(folder, screen)
            with (
                ForkServer(environment(threads=1)) if CAN_FORK else nullcontext() as forks,
                LocalSwarm(folder, _settings(text, steps), forks=forks) as swarm,
            ):
                story = _start(swarm, screen, steps, pages)
                story.train()
            model = keep(swarm.output / "final", place)
            picture = story.conclude(model / "run.png")
        except SwarmflowError as error:
            for note in getattr(error, "__notes__", ()):
                screen.say(note)
            raise SwarmflowError(f"the demo failed: {error}; all logs are in {folder}") from error
        except KeyboardInterrupt:
            shutil.rmtree(folder)
            raise
        shutil.rmtree(folder)
        _show_model(model, screen)
        screen.say(f"\nThe picture of the run: {picture}", style="bold")
        screen.say(f"The model, a Hugging Face checkpoint: {model}", style="bold")
        if keep_page:
            screen.say(f"The page plays the run again: {story.recorder.address} (Ctrl-C ends it)", style="bold")
            with suppress(KeyboardInterrupt):
                signal.pause()
    return 0


@dataclass
class _Story:
    """One run: what is said of it while it lasts, and when it is over."""

    swarm: LocalSwarm
    recorder: RunRecorder
    screen: Screen
    steps: int
    names: dict[str, str] = field(default_factory=dict)  # of the processes, by the ends of their libp2p names
    marks: list[Mark] = field(default_factory=list)

    def serve(self) -> None:
        """Wait for the first step."""
        self.swarm.wait(lambda: self.reached(1), "the first step", SERVE_S)

    def train(self) -> None:
        """Follow the run to its end; kill a peer on the way, and let another one join."""
        at, victim = self.steps // 3, self.swarm.peers[1]
        self.swarm.wait(lambda: self.reached(at), f"{at} steps", TRAIN_S)
        # Between two steps a peer holds nothing, and there would be nothing to repair.
        self.swarm.wait(lambda: self.reached(at + BUSY_STEPS) or self._is_busy(victim), "work at a peer", TRAIN_S)
        victim.kill()
        self.marks.append(Mark(time.time(), "killed", f"SIGKILL to {victim.name}"))
        self.screen.say(f"SIGKILL to {victim.name} (process {victim.pid}): it cannot say goodbye.", style="bold red")
        newcomer = self.swarm.start_peer() if self.steps >= NEWCOMER_STEPS else None
        self.swarm.wait(lambda: self.reached(self.steps), "the last step", TRAIN_S)
        if newcomer is not None and self._seen(newcomer) is None:
            newcomer.kill()  # it comes too late, and would look for the run
        self.swarm.wait(lambda: self.report() and self._is_over(), "the end of the run", SERVE_S)

    def conclude(self, picture: Path) -> Path:
        """Say what came of it, draw it, and have the page play it; return the picture's path."""
        done = self.swarm.steps()
        self.recorder.replay(done)
        if len({step["microbatches"] for step in done}) != 1:
            raise SwarmflowError("a step was committed without all of its microbatches")
        last = [step["loss"] for step in done[-LAST_STEPS:]]
        self.screen.say(
            f"One peer died and nothing was lost: each of the {len(done)} steps has all of its "
            f"{done[-1]['microbatches']} microbatches."
        )
        end = f"{sum(last) / len(last):.3f} at the end (mean of {len(last)} steps)"
        self.screen.say(f"Loss {done[0]['loss']:.3f} at the start, {end}.", style="bold")
        draw(done, self.marks, "A peer is killed, and no step is lost", picture)
        return picture

    def reached(self, count: int) -> bool:
        """Say what is new; return whether so many steps are committed."""
        self.report()
        done = self.swarm.steps()
        if done:
            self.screen.show(done[-1])
        return len(done) >= count

    def report(self) -> bool:
        """Say each event that has happened since; True."""
        for event, before in self.recorder.news():
            self._learn_names()
            # That six peers load at the start is told by each that has loaded.
            if event["kind"] != "loading" or self.marks:
                sentence = sentence_of(event, before, self.names)
                self.screen.say(sentence.text, style=sentence.style)
            if self.marks:
                self.marks += marks_of(event, self.names)
        return True

    def _seen(self, process: LocalProcess) -> dict[str, Any] | None:
        """Return a peer in the latest view; None: it is not there."""
        stages = self.recorder.view["stages"] if self.recorder.view is not None else []
        peers = (peer for stage in stages for peer in stage["peers"])
        return next((peer for peer in peers if self.names.get(peer["name"][-6:]) == process.name), None)

    def _is_busy(self, process: LocalProcess) -> bool:
        """Return whether a peer holds microbatches or gradients of the step, as far as the latest view knows."""
        peer = self._seen(process)
        return (
            peer is not None
            and self.recorder.view is not None
            and (peer["held"] > 0 or any(hop[2] == peer["id"] for hop in self.recorder.view["hops"]))
        )

    def _is_over(self) -> bool:
        return all(process.exit_code is not None for process in self.swarm.processes)

    def _learn_names(self) -> None:
        for process in self.swarm.processes:
            identity = self.swarm.state_folder(process.name) / "identity.key"
            if process.name not in self.names.values() and identity.is_file():
                self.names[load_identity(identity).name[-6:]] = process.name


def _write_data(folder: Path, screen: Screen) -> Path:
    """Write the text and its tokenizer; return the text's path."""
    text = folder / "prose.txt"
    size = write_prose(text)
    tokens = write_tokenizer(text, folder / "tokenizer.json")
    screen.say(f"The text: {size / 1e6:.1f} MB of English out of this machine's own Python, manual and docstrings.")
    screen.say(f"The tokenizer: the {tokens} commonest pieces of words in it.")
    return text


def _settings(text: Path, steps: int) -> dict[str, dict[str, Any]]:
    config = {
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "initializer_range": 0.08,  # about 1 / sqrt(hidden_size): so small a model learns sooner than with 0.02
    }
    return {
        "run": {"name": "demo", "output": "out"},
        "model": {"config": config, "stages": STAGES},
        "data": {"path": text.name, "tokenizer": "tokenizer.json", "seq_len": 128, "order": "shuffled"},
        "optimizer": {"name": "adamw", "lr": 1e-2, "schedule": "cosine", "warmup_steps": 10},
        "train": {
            "steps": steps,
            "microbatches": 8,
            "microbatch_sequences": 4,
            "checkpoint_every": max(20, steps // 2),
        },
    }


def _start(swarm: LocalSwarm, screen: Screen, steps: int, pages: ExitStack) -> _Story:
    """Start the swarm and wait for its first step. pages: closes the page."""
    screen.say(f"Starting {TRAINERS} trainers and {PEERS} peers, each a process of its own ...")
    swarm.start_trainer()
    screen.say(f"The invite: {swarm.invite}")
    recorder = pages.enter_context(RunRecorder(asking_this_machine(Invite.parse(swarm.invite).run_id)))
    screen.say(f"The page of the run: {recorder.address}", style="bold")
    for number in range(PEERS):
        # Named here, so that two serve each stage however fast this machine starts them; elsewhere auto does it.
        swarm.start_peer("--rebalance-period", "0", stage=number % STAGES)
    for _ in range(TRAINERS - 1):
        swarm.start_trainer()
    story = _Story(swarm, recorder, screen, steps)
    story.serve()
    return story


def _show_model(model: Path, screen: Screen) -> None:
    screen.say("\nWhat it writes, with plain transformers:", style="bold")
    for prompt in PROMPTS:
        screen.say("\n" + textwrap.fill(sample(model, prompt, SAMPLE_TOKENS), WIDTH))


def checked_place(out: Path) -> Path:
    """Return the whole path of `--out`, whose parent is made. Raises ConfigError where nothing can be put there."""
    place = Path(os.path.abspath(out))
    if not place.name:
        raise ConfigError(f"--out {out}: name a folder that is to be made")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place.parent):
            pass
    except OSError as error:
        raise ConfigError(f"--out {out}: nothing can be put into {place.parent} ({error.strerror})") from None
    return place


def keep(final: Path, place: Path) -> Path:
    """Move the model to a place, or to the first of NAME-2, NAME-3, ... that is free, so that nothing is overwritten.

    Raises SwarmflowError, which says where the model is.
    """
    number, free = 1, place
    while os.path.lexists(free):
        number += 1
        free = place.with_name(f"{place.name}-{number}")
    try:
        shutil.move(final, free)
    except OSError as error:
        raise SwarmflowError(f"the model cannot be moved to {free} ({error}); it is in {final}") from error
    return free
