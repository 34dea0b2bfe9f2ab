"""How processes leave a run and come back to it: drained, stopped, started again, prolonged, and killed."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm
from tests.swarm.commands import started
from tests.swarm.reference import load_model, parameters, relative_difference, train
from tests.swarm.runs import prepare, recipe, settings

pytestmark = [pytest.mark.swarm, pytest.mark.slow]

FINISH_S = 45.0
FOR_EVER = 100_000
MORE = 12
EVERY = 20
DRAIN_S = 30.0
TORN = '{"step": 7, "lo'


@pytest.fixture(scope="module", autouse=True)
def own_runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Only runs of these tests are found without an invite."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@dataclass
class Lives:
    """A run in three lives of its trainer, each longer than the one before; one peer of two stayed through all."""

    first: LocalSwarm
    model: Path
    corpus: Path
    drained: LocalProcess
    stayed: LocalProcess
    invites: list[str]
    ends: list[int]
    stopped_at: int
    logs: list[str]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[Lives]:
    folder = tmp_path_factory.mktemp("lives")
    model, corpus = prepare(folder, "gpt2")
    run = settings(model, corpus, recipe("adamw", steps=FOR_EVER, microbatches=4), stages=1)
    run["data"]["validation_path"] = str(corpus)
    run["train"]["validate_every"] = 4
    with ExitStack() as swarms:
        first = swarms.enter_context(LocalSwarm(folder / "swarm", run, forks=forks))
        trainer = first.start_trainer()
        stayed, drained = first.start_peer("--stay"), first.start_peer()
        first.wait(lambda: first.steps() and first.steps()[-1]["peers"] == [2], "a step with both", FINISH_S)
        drained.send(signal.SIGTERM)
        first.wait(lambda: drained.exit_code is not None, "the drained peer's end", FINISH_S)
        first.wait_steps(len(first.steps()) + 2, FINISH_S)
        trainer.send(signal.SIGINT)
        first.wait(lambda: trainer.exit_code is not None, "the trainer's end", FINISH_S)
        found = Lives(first, model, corpus, drained, stayed, [first.invite], [trainer.process.wait()], 0, [])
        found.stopped_at = len(first.steps())
        found.logs.append(trainer.log.read_text(encoding="utf-8"))
        first.wait(lambda: "waiting for a trainer of run test" in _log(stayed), "the peer to say so", FINISH_S)
        with first.json_file().open("a", encoding="utf-8") as file:
            file.write(TORN)
        for life in (1, 2):
            run["train"]["steps"] = found.stopped_at + life * MORE
            again = swarms.enter_context(LocalSwarm(folder / "swarm", run, forks=forks))
            trainer = again.start_trainer()
            found.invites.append(again.invite)
            again.wait_finished(FINISH_S)
            found.ends.append(trainer.process.wait())
            found.logs.append(_log(trainer))
        yield found


def _log(process: LocalProcess) -> str:
    return process.log.read_text(encoding="utf-8")


def test_a_drained_peer_costs_the_step_nothing(lives: Lives) -> None:
    assert lives.drained.exit_code == 0
    assert "drained" in _log(lives.drained)
    assert "is gone" not in lives.logs[0]
    steps = lives.first.steps()
    assert {step["retries"] for step in steps} == {0}
    assert {step["microbatches"] for step in steps} == {4}


def test_a_stopped_trainer_writes_a_checkpoint_first_and_resumes_there(lives: Lives) -> None:
    assert lives.ends == [0, 0, 0]
    assert f"version {lives.stopped_at} is on disk" in lives.logs[0]
    assert f"resuming at version {lives.stopped_at}" in lives.logs[1]
    assert f"resuming at version {lives.stopped_at + MORE}" in lives.logs[2]


def test_the_log_goes_on_without_a_gap_or_a_torn_line(lives: Lives) -> None:
    lines = lives.first.json_file().read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["step"] for step in steps] == list(range(lives.stopped_at + 2 * MORE))
    validated = [step["step"] for step in steps if "validation_loss" in step]
    assert validated == [step["step"] for step in steps if step["version"] % 4 == 0]


def test_a_run_in_three_lives_learns_what_one_plain_process_learns(lives: Lives, tmp_path: Path) -> None:
    of = recipe("adamw", steps=lives.stopped_at + 2 * MORE, microbatches=4)
    wanted, losses = train(lives.model, lives.corpus, of)
    torch.testing.assert_close([step["loss"] for step in lives.first.steps()], losses, rtol=1e-5, atol=0)
    found = parameters(load_model(lives.first.output / "final"))
    assert max(relative_difference(found, wanted).values()) < 1e-4
    lives.first.command("export", "--state-dir", str(lives.first.folder / "trainer-0"), "--out", str(tmp_path / "out"))
    exported = parameters(load_model(tmp_path / "out"))
    assert all(torch.equal(exported[name], found[name]) for name in found)


def test_the_invite_survives_a_restart(lives: Lives) -> None:
    assert lives.invites[0] == lives.invites[1] == lives.invites[2]


def test_a_peer_that_stays_joined_every_life_and_leaves_at_once_when_told(lives: Lives) -> None:
    assert lives.stayed.exit_code is None
    assert _log(lives.stayed).count("serving stage 0") == 3
    lives.stayed.send(signal.SIGINT)
    assert lives.stayed.process.wait(FINISH_S) == 0


# --- two trainers of one output ---------------------------------------------------------------------------------------


def _pair(folder: Path) -> dict[str, dict[str, Any]]:
    model, corpus = prepare(folder, "llama")
    run = settings(model, corpus, recipe("adamw", steps=FOR_EVER, microbatches=4), stages=1)
    run["run"]["output"] = str(folder / "out")
    run["train"]["checkpoint_every"] = EVERY
    return run


@pytest.mark.extended
def test_the_second_trainer_of_a_folder_joins_leaves_comes_back_and_takes_over(
    tmp_path: Path, forks: ForkServer
) -> None:
    run = _pair(tmp_path)
    with ExitStack() as swarms:
        leading = swarms.enter_context(LocalSwarm(tmp_path / "leading", run, forks=forks))
        leader = leading.start_trainer()
        # Found without an invite: the run is alive on this machine.
        peer = swarms.enter_context(started(tmp_path / "peer.log", "peer", "--listen", "127.0.0.1:0"))
        leading.wait_steps(1, FINISH_S)

        second = swarms.enter_context(LocalSwarm(tmp_path / "second", run, forks=forks))
        joined = second.start_trainer()
        second.wait_steps(2, FINISH_S)
        assert "another trainer leads" in _log(joined)
        joined.send(signal.SIGINT)
        assert joined.process.wait(FINISH_S) == 0
        assert "left after the step" in _log(joined)

        third = swarms.enter_context(LocalSwarm(tmp_path / "third", run, forks=forks))
        successor = third.start_trainer()
        # It is told of the step that it came into; the next one is committed by a peer that has heard of the heir.
        third.wait_steps(2, FINISH_S)
        # Of steps this short the first versions may be gone from the peer before this trainer has copied them.
        leading.wait(lambda: re.search(r"version \d+ is on disk", _log(leader)), "a checkpoint", FINISH_S)
        assert {step["retries"] for step in leading.steps()} == {0}
        leader.kill()
        known = len(leading.steps())
        third.wait(lambda: "leading from here on" in _log(successor), "the heir to lead", FINISH_S)
        third.wait(lambda: third.steps()[-1]["step"] > known + 2, "steps of the heir", FINISH_S)
        assert "back from version" not in _log(successor)

        # With a leader that is frozen, the step is never committed: only the second Ctrl-C can end the peer soon.
        successor.send(signal.SIGSTOP)
        peer.send(signal.SIGINT)
        third.wait(lambda: "draining: no new work" in _log(peer), "the peer to drain", FINISH_S)
        peer.send(signal.SIGINT)
        assert peer.process.wait(DRAIN_S / 2) == 0
        assert "left at once" in _log(peer)
