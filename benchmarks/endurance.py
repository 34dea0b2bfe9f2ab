"""Memory of every process over many small steps under churn: `python -m benchmarks.endurance [--steps N]`.

Two peers a stage and two trainers; of each stage one peer is killed and replaced again and again, and now and then the
leading trainer. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.memory import resident_bytes
from swarmflow.chaos.steps import StepLogs
from swarmflow.demo.corpus import write_corpus
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm, environment, terminable

STAGES = 2
MEGA, KILO = 1e6, 1e3
ROWS = 20
STEP_S_MAX = 120.0
# Caches fill, and allocators find their sizes, in the first of this share of a life's steps.
WARM_UP = 0.3
LIFE_STEPS_MIN = 100
GROWTH_MAX = 0.05
MODEL = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 32,
}


@dataclass(frozen=True)
class EnduranceWork:
    """steps: of the run. peer_every, leader_every: steps between two deaths."""

    steps: int
    peer_every: int
    leader_every: int


@dataclass
class SampledLife:
    """One life of a process. Sampled at `steps`, in bytes: its own resident memory, and its network daemon's."""

    process: str
    life: int
    pid: int
    steps: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    daemon: list[int] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        """Whether it lived long enough for its slope to say something."""
        return bool(self.steps) and self.steps[-1] - self.steps[0] >= LIFE_STEPS_MIN

    def slope(self, values: Sequence[int]) -> float:
        """Bytes a step after the warm-up, by least squares."""
        first = self._warm()
        return statistics.linear_regression(self.steps[first:], values[first:]).slope

    @property
    def growth(self) -> float:
        """By which share of what it had after the warm-up it grew until its end."""
        first = self._warm()
        return self.slope(self.own) * (self.steps[-1] - self.steps[first]) / self.own[first]

    def _warm(self) -> int:
        edge = self.steps[0] + WARM_UP * (self.steps[-1] - self.steps[0])
        return next(index for index, step in enumerate(self.steps) if step >= edge)


class Endurance:
    """Drives one swarm through its steps and samples it at each."""

    def __init__(self, swarm: LocalSwarm, work: EnduranceWork) -> None:
        self.lives: list[SampledLife] = []
        self.kills = 0
        self._swarm = swarm
        self._work = work
        self._logs = StepLogs()
        self._leader = 0

    def complete(self) -> None:
        """To the end of the run. Raises LocalSwarmError."""
        swarm, work = self._swarm, self._work
        for beside in (False, True):
            self._follow(swarm.start_trainer(beside=beside))
        for number in range(2 * STAGES):
            self._follow(swarm.start_peer(stage=number % STAGES))
        done = 0
        while done < work.steps:
            before, done = done, swarm.wait(self._committed, "the next step", STEP_S_MAX)
            self._sample(done)
            if done >= work.steps - work.peer_every:
                continue  # who is away when the run ends waits for it
            if before // work.leader_every < done // work.leader_every:
                self._replace(swarm.trainers[self._leader])
                self._leader = 1 - self._leader
            elif before // work.peer_every < done // work.peer_every:
                self._replace(swarm.peers[STAGES + self.kills % STAGES])
        swarm.wait_finished(STEP_S_MAX)

    def _committed(self) -> int | None:
        """The newest version, where there is a newer one than at the last call."""
        steps = self._logs.read([self._swarm.json_file(trainer.name) for trainer in self._swarm.trainers])
        return int(steps[-1]["version"]) if steps else None

    def _follow(self, process: LocalProcess) -> None:
        self.lives.append(SampledLife(process.name, process.life, process.pid))

    def _replace(self, process: LocalProcess) -> None:
        process.kill()
        self.kills += 1
        self._follow(self._swarm.start_again(process))

    def _sample(self, step: int) -> None:
        present = {process.pid for process in self._swarm.processes if process.exit_code is None}
        for life in self.lives:
            own, daemon = resident_bytes(life.pid) if life.pid in present else (0, 0)
            if own:
                life.steps.append(step)
                life.own.append(own)
                life.daemon.append(daemon)


def settings(corpus: Path, work: EnduranceWork) -> dict[str, dict[str, Any]]:
    """RUN.toml."""
    return {
        "run": {"name": "endurance", "output": "out"},
        "model": {"config": MODEL, "cut": [2]},
        "data": {"path": str(corpus), "tokenizer": "bytes", "seq_len": 32},
        "train": {"steps": work.steps, "microbatches": 8, "microbatch_sequences": 1, "checkpoint_every": 100},
    }


def show(lives: Sequence[SampledLife], work: EnduranceWork) -> None:
    """The curve, then the slopes."""
    names = sorted({life.process for life in lives}, key=lambda name: (name.split("-")[0], int(name.split("-")[1])))
    print("MB      " + "".join(f"{name:>12s}" for name in names) + "    (number: of the life)")
    for row in range(1, ROWS + 1):
        step = row * work.steps // ROWS
        cells = []
        for name in names:
            past = [life for life in lives if life.process == name and life.steps and life.steps[0] <= step]
            cells.append(_cell(past[-1], step) if past else "-")
        print(f"{step:6d}  " + "".join(f"{cell:>12s}" for cell in cells))
    print("\nprocess      life   steps   MB after warm-up   KB a step   p2pd, KB a step   growth")
    for life in lives:
        if life.settled:
            first = life.own[life._warm()] / MEGA
            own, daemon = life.slope(life.own) / KILO, life.slope(life.daemon) / KILO
            span = f"{life.steps[-1] - life.steps[0]:7d}"
            name = f"{life.process:12s} {life.life:4d}"
            print(f"{name} {span} {first:18.1f} {own:11.2f} {daemon:19.2f} {life.growth:8.1%}")


def _cell(life: SampledLife, step: int) -> str:
    index = max(i for i, at in enumerate(life.steps) if at <= step)
    return f"{life.own[index] / MEGA:.1f} ({life.life})"


def main() -> int:
    """0 where no life of a process grew by more than GROWTH_MAX after its warm-up, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance", description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--peer-every", type=int, default=40, help="steps between the deaths of two peers")
    parser.add_argument("--leader-every", type=int, default=700, help="steps between the deaths of two leaders")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured here")
    options = parser.parse_args()
    work = EnduranceWork(options.steps, options.peer_every, options.leader_every)
    with (
        tempfile.TemporaryDirectory(prefix="swarmflow-endurance-") as folder,
        ForkServer(environment(threads=1)) as forks,
    ):
        corpus = Path(folder) / "corpus.txt"
        write_corpus(corpus)
        with LocalSwarm(Path(folder) / "swarm", settings(corpus, work), forks=forks) as swarm:
            endurance = Endurance(swarm, work)
            endurance.complete()
    show(endurance.lives, work)
    worst = max((life for life in endurance.lives if life.settled), key=lambda life: life.growth)
    print(f"\n{endurance.kills} deaths; most growth: {worst.process}, {worst.growth:.1%} (at most {GROWTH_MAX:.0%})")
    if options.json is not None:
        rows = {"work": asdict(work), "lives": [asdict(life) for life in endurance.lives]}
        options.json.write_text(json.dumps(rows), encoding="utf-8")
    return 0 if worst.growth <= GROWTH_MAX else 1


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
