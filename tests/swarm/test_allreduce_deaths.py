"""An all-reduce survives the death of a member at any piece: the others agree, and what is learnt does not change."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from swarmflow.chaos.compare import compare_bits
from swarmflow.chaos.plain import load_model, parameters, write_model
from swarmflow.demo.corpus import write_corpus
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm, environment
from tests.swarm import dying
from tests.swarm.runs import FINISH_S

MEMBERS = 7
LEFT = 2  # of the members, when the dead are replaced
POSITIONS = range(20)
FOR_EVER = 100_000
WANTED_S = 60.0
MODES: dict[str, dict[str, Any]] = {
    "exact": {"accumulate": "exact"},
    "blockwise16": {"reduce_codec": "blockwise16"},
    "delayed": {"reduce_codec": "blockwise16", "delay": 1},
}


def write_files(folder: Path) -> tuple[Path, Path]:
    """A model with a few more pieces than there are positions, and a corpus."""
    model, corpus = folder / "init", folder / "corpus.txt"
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=256,
        max_position_embeddings=16,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    write_model(config, model)
    write_corpus(corpus, 1 << 14)
    return model, corpus


def settings(model: Path, corpus: Path, steps: int, mode: dict[str, Any]) -> dict[str, Any]:
    """Little to compute, much to reduce."""
    return {
        "run": {"name": "test", "output": "out"},
        "model": {"path": str(model), "stages": 1},
        "data": {"path": str(corpus), "tokenizer": "bytes", "seq_len": 8},
        "optimizer": {"name": "sgd", "lr": 0.05},
        "train": {
            "steps": steps,
            "microbatches": 8,
            "microbatch_sequences": 1,
            "codec": "none",
            "checkpoint_every": FOR_EVER,
            **mode,
        },
    }


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(mode, id=name, marks=() if name == "blockwise16" else pytest.mark.exhaustive)
        for name, mode in MODES.items()
    ],
)
def test_a_member_dies_at_each_piece_of_an_all_reduce(mode: dict[str, Any], tmp_path: Path) -> None:
    model, corpus = write_files(tmp_path)
    assert sum(p.numel() for p in load_model(model).parameters()) / dying.PIECE_ELEMENTS > len(POSITIONS)
    with ForkServer(environment(threads=1), "tests.swarm.dying") as forks:
        with LocalSwarm(tmp_path / "swarm", settings(model, corpus, FOR_EVER, mode), forks=forks) as swarm:
            trainer = swarm.start_trainer()
            for _ in range(MEMBERS):
                swarm.start_peer()
            for first in POSITIONS[:: MEMBERS - LEFT]:
                wait_for_all(swarm)
                dead = [die_at(swarm, member, first + member) for member in range(MEMBERS - LEFT)]
                for process in dead:
                    swarm.start_again(process)
            wait_for_all(swarm)
            trainer.send(signal.SIGINT)
            swarm.wait(lambda: trainer.exit_code is not None, "the trainer's end", FINISH_S)
            steps, log = swarm.steps(), trainer.log.read_text(encoding="utf-8")
            lines = swarm.json_file().read_text(encoding="utf-8").splitlines()
        swarm.command("export", "--state-dir", str(swarm.state_folder("trainer-0")), "--out", str(tmp_path / "found"))
        with LocalSwarm(tmp_path / "undisturbed", settings(model, corpus, len(steps), mode), forks=forks) as alone:
            alone.start_trainer()
            alone.start_peer()
            alone.wait_finished(FINISH_S)
            wanted = alone.steps()
    for text in ("starts over", "has to join again", "back from version"):
        assert text not in log, "the survivors agree, and go on from where they were"
    assert log.count("is gone: ") == len(POSITIONS)
    assert [step["step"] for step in steps] == list(range(len(lines))), "each step is committed once"
    for name in ("loss", "grad_norm"):
        assert [step[name] for step in steps] == [step[name] for step in wanted]
    found, undisturbed = (parameters(load_model(folder)) for folder in (tmp_path / "found", alone.output / "final"))
    comparison = compare_bits(found, undisturbed, "the undisturbed run")
    assert comparison.holds, str(comparison)


def wait_for_all(swarm: LocalSwarm) -> None:
    """A step is committed in which every member took part."""
    before = len(swarm.steps())

    def all_members() -> bool:
        steps = swarm.steps()
        return len(steps) > before and steps[-1]["peers"] == [MEMBERS]

    swarm.wait(all_members, "a step of all members", WANTED_S)


def die_at(swarm: LocalSwarm, member: int, position: int) -> LocalProcess:
    """A member dies in the next all-reduce, when so many of its pieces are reduced."""
    victim = swarm.peers[member]
    victim.expendable = True
    folder = swarm.state_folder(victim.name)
    dying.tell(folder, position)
    code = swarm.wait(lambda: victim.exit_code, f"the death at position {position}", WANTED_S)
    assert code == -signal.SIGKILL
    dying.forgive(folder)
    return victim
