"""Everything is killed, or all of a stage: the run goes on from its newest checkpoint, and learns the same bits."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from torch import Tensor

from swarmflow.chaos.compare import compare_bits
from swarmflow.chaos.plain import load_model, parameters
from swarmflow.compute.checkpoint import checkpoints
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm, kill_at_once
from tests.disks import flip_bit, newest_files, small_disk
from tests.swarm.runs import FINISH_S, prepare, recipe, settings

pytestmark = [pytest.mark.swarm, pytest.mark.slow]

STAGES = 2
STEPS = 32
EVERY = 4


@dataclass(frozen=True)
class Undisturbed:
    """What the run is, and what comes of it when nothing happens. losses: and gradient norms, by step."""

    run: dict[str, Any]
    forks: ForkServer
    wanted: dict[str, Tensor]
    losses: list[tuple[float, float]]

    def swarm(self, folder: Path) -> LocalSwarm:
        """The same run, to be disturbed."""
        return LocalSwarm(folder, self.run, forks=self.forks)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[Undisturbed]:
    """With everything that has a state: shuffled data, a schedule, moments, dropout."""
    folder = tmp_path_factory.mktemp("undisturbed")
    model, corpus = prepare(folder, "gpt2")
    of = recipe("adamw", steps=STEPS)
    run = settings(model, corpus, of, codec="blockwise8", stages=STAGES)
    run["model"] |= {"cut": [1], "dropout": True}
    run["data"]["order"] = "shuffled"
    run["optimizer"] = {**of.optimizer, "schedule": "cosine", "warmup_steps": 3}
    run["train"] |= {"accumulate": "exact", "checkpoint_every": EVERY}
    run["timeouts"] = {"copies_s": 4.0}  # for a version that was on the disks that are lost alone
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))  # only runs of these tests are found without an invite
        with LocalSwarm(folder / "swarm", run, forks=forks) as swarm:
            swarm.start_trainer()
            for stage in range(STAGES):
                swarm.start_peer(stage=stage)
            swarm.wait_finished(FINISH_S)
            wanted = parameters(load_model(swarm.output / "final"))
            yield Undisturbed(run, forks, wanted, learnt(swarm.steps()))


def learnt(steps: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """What tells one course of a run from another."""
    return [(step["loss"], step["grad_norm"]) for step in steps]


def assert_same(swarm: LocalSwarm, undisturbed: Undisturbed) -> None:
    """Bit for bit what comes of the undisturbed run; a trainer has no line of a step that was done in its absence."""
    logged: dict[int, tuple[float, float]] = {}
    for trainer in swarm.trainers:
        steps = swarm.steps(trainer.name)
        for step, values in zip(steps, learnt(steps), strict=True):
            assert logged.setdefault(step["step"], values) == values, f"{trainer.name} differs in {step}"
    assert [logged[step] for step in sorted(logged)] == undisturbed.losses
    assert_same_model(swarm, undisturbed)


def assert_same_model(swarm: LocalSwarm, undisturbed: Undisturbed) -> None:
    """The model that was written, alone."""
    comparison = compare_bits(parameters(load_model(swarm.output / "final")), undisturbed.wanted, "the undisturbed run")
    assert comparison.holds, str(comparison)


def start(swarm: LocalSwarm, trainers: int = 2, wish: bool = False) -> None:
    """Trainers that may all lead, and two peers a stage that may serve either.

    wish: each asks for its stage, so that no stage has three of them, which measured links may suggest.
    """
    swarm.start_trainer()
    for _ in range(trainers - 1):
        swarm.start_trainer(beside=True)
    for number in range(2 * STAGES):
        swarm.start_peer(stage=number % STAGES if wish else "auto")


def log_of(process: LocalProcess) -> str:
    return process.log.read_text(encoding="utf-8")


def logs_of(processes: Sequence[LocalProcess]) -> str:
    return "".join(map(log_of, processes))


def wait_amid_steps(swarm: LocalSwarm, before: int = 0) -> int:
    """Wait until a checkpoint lies on the trainers' disks and the run has gone on from there; return its steps.

    before: how many steps the run had come to when it was disturbed last.
    """
    folders = [swarm.state_folder(trainer.name) / "checkpoints" for trainer in swarm.trainers]

    def past_checkpoint() -> bool:
        kept = all(any(copy.complete for copy in checkpoints(folder)) for folder in folders)
        steps = len(swarm.steps())
        return kept and steps > before + EVERY and steps % EVERY == 2  # the newest version is on no disk

    swarm.wait(past_checkpoint, "steps beyond the next checkpoint", FINISH_S)
    return len(swarm.steps())


def wait_for_copies(swarm: LocalSwarm) -> None:
    """Wait until peers hold what whichever trainer leads has on its disk."""
    text = "is on the disks of others too"
    swarm.wait(lambda: any(text in log_of(trainer) for trainer in swarm.trainers), "the copies", FINISH_S)


def kill_all(swarm: LocalSwarm, before: int = 0) -> int:
    """Kill every process between two steps or amid one; return how many steps they had come to."""
    kill_at_once(swarm.processes)
    reached = len(swarm.steps())
    assert before + EVERY < reached < STEPS
    return reached


def wait_finished(swarm: LocalSwarm) -> None:
    """Wait for the end of the run. A peer that was not back before it waits for a trainer, and is ended."""
    swarm.wait(lambda: all(trainer.exit_code is not None for trainer in swarm.trainers), "the run's end", FINISH_S)
    for peer in swarm.peers:
        if "serving stage" not in log_of(peer):
            peer.send(signal.SIGTERM)
    swarm.wait_finished(FINISH_S)


def start_all_again(swarm: LocalSwarm, order: Sequence[LocalProcess]) -> None:
    for process in list(order):
        swarm.start_again(process)


# --- every process ----------------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_every_process_is_killed_and_started_again_three_times(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """With all disks and the peers first, without the disk of the first leader, and with no trainer's checkpoints."""
    with undisturbed.swarm(tmp_path / "swarm") as swarm:
        start(swarm)
        wait_amid_steps(swarm)
        reached = kill_all(swarm)
        start_all_again(swarm, swarm.peers + swarm.trainers)

        wait_amid_steps(swarm, reached)
        assert_resumed(swarm)
        reached = kill_all(swarm, reached)
        shutil.rmtree(swarm.state_folder("trainer-0"))
        start_all_again(swarm, swarm.trainers + swarm.peers)

        wait_amid_steps(swarm, reached)
        wait_for_copies(swarm)
        assert_resumed(swarm)
        kill_all(swarm, reached)
        for trainer in swarm.trainers:
            shutil.rmtree(swarm.state_folder(trainer.name) / "checkpoints")
        start_all_again(swarm, swarm.trainers + swarm.peers)

        wait_finished(swarm)
        assert " from the disks of others" in logs_of(swarm.trainers)  # whichever of them led again
        assert "loading version 0" not in logs_of(swarm.peers)
        assert_same(swarm, undisturbed)


def assert_resumed(swarm: LocalSwarm) -> None:
    logs = logs_of(swarm.trainers)
    assert "resuming at version " in logs
    assert "resuming at version 0" not in logs


@pytest.mark.extended
def test_the_only_trainers_disk_is_full_deleted_spoilt_and_lost_and_no_step_that_was_learnt_with_it(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The run is killed as a whole once a bit of its newest checkpoint is flipped, and before all of them are lost.

    Until the run has paused the peers' disks are full too.
    """
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / "swarm" / "trainer-0", 16 << 20))
        peers = [tmp_path / "swarm" / f"peer-{number}" for number in range(2 * STAGES)]
        others = [stack.enter_context(small_disk(path, 16 << 20)) for path in peers]
        swarm = stack.enter_context(undisturbed.swarm(tmp_path / "swarm"))
        trainer = swarm.start_trainer()
        assert "disk: up to " in log_of(trainer), "what the run will need is told before the invite"
        disk.fill()
        for other in others:
            swarm.start_peer()
            swarm.wait((other.path / "run").exists, "a peer's folder", FINISH_S)
            other.fill()
        swarm.wait(lambda: "the run pauses and waits for a disk" in log_of(trainer), "the pause", FINISH_S)
        assert len(swarm.wait_steps(EVERY + 1, FINISH_S)) == EVERY + 1, "its line may come after the pause is told"
        waits_for = swarm.status()["waiting_for"]
        assert f" in {disk.path}/checkpoints/version-0000000{EVERY + 1}, where " in waits_for
        assert " free: make " in waits_for

        for other in others:
            other.empty()
        for entry in disk.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        text = "was deleted: what belongs there is written again"
        swarm.wait(lambda: text in log_of(trainer), "what was deleted", FINISH_S)
        wait_for_copies(swarm)
        swarm.wait_steps(EVERY + 3, FINISH_S)
        again = {path.name for path in disk.path.iterdir()}
        assert {"identity.key", "run.json", "known", "begun", "tokenizer"} <= again

        reached = kill_all(swarm)
        spoilt = newest_files(disk.path)[0]
        flip_bit(spoilt, Random(0))
        trainer = start_trainer_first(swarm)
        wait_amid_steps(swarm, reached)
        wait_for_copies(swarm)
        assert log_of(trainer).count(f"{spoilt} is corrupt") == 1
        assert spoilt.with_name(f"{spoilt.name}.corrupt").is_file() or not spoilt.parent.exists()
        assert "loading version 0" not in logs_of(swarm.peers)

        kill_all(swarm, reached)
        shutil.rmtree(disk.path / "checkpoints")
        start_trainer_first(swarm)
        swarm.wait_finished(FINISH_S)
        assert " from the disks of others" in logs_of(swarm.trainers)
        assert "loading version 0" not in logs_of(swarm.peers)
        assert_same(swarm, undisturbed)


def start_trainer_first(swarm: LocalSwarm) -> LocalProcess:
    """A peer that looks for the trainer too early looks again after seconds, when others may have ended the run."""
    trainer = swarm.start_again(swarm.trainers[0])
    swarm.wait(lambda: "waiting for the peers" in log_of(trainer), "the trainer", FINISH_S)
    start_all_again(swarm, swarm.peers)
    return trainer


@pytest.mark.extended
def test_the_leaders_machine_is_gone_for_good(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """The other trainer, which had joined the run on another machine, leads from its copy after a restart of all."""
    with undisturbed.swarm(tmp_path / "swarm") as swarm:
        swarm.start_trainer()
        swarm.start_trainer()
        for _ in range(2 * STAGES):
            swarm.start_peer()
        swarm.wait(lambda: all(map(partial(knows_trainers, swarm), swarm.peers)), "notes of both trainers", FINISH_S)
        wait_amid_steps(swarm)
        kill_all(swarm)
        shutil.rmtree(swarm.state_folder("trainer-0"))
        former, other = swarm.trainers
        for process in [other, *swarm.peers]:
            swarm.start_again(process)
        left = [process for process in swarm.processes if process is not former]
        swarm.wait(lambda: all(process.exit_code is not None for process in left), "the end of the run", FINISH_S)
        assert "resuming at version " in log_of(swarm.trainers[1])
        assert_same(swarm, undisturbed)


def knows_trainers(swarm: LocalSwarm, peer: LocalProcess) -> bool:
    """Whether a peer has noted the addresses of both trainers, which it does every second."""
    file = swarm.state_folder(peer.name) / "trainers"
    return file.exists() and len(set(re.findall(rb"/p2p/\w+", file.read_bytes()))) == 2


# --- every trainer, and every peer of a stage -------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, STAGES))])
def test_every_peer_of_a_stage_is_killed_and_then_of_the_other(
    first: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Another peer moves to the one stage; to the other come those that were killed. Once all trainers died before."""
    with undisturbed.swarm(tmp_path / "swarm") as swarm:
        start(swarm, wish=True)
        wait_amid_steps(swarm)
        if first == 0:
            kill_every_trainer(swarm)
        lost = kill_stage(swarm, first)
        swarm.wait(lambda: first in {stage_of(peer) for peer in swarm.peers if peer not in lost}, "another", FINISH_S)
        reached = len(swarm.steps())
        went_back(swarm, first)
        wait_amid_steps(swarm, reached)
        lost += kill_stage(swarm, 1 - first, but=lost)
        start_all_again(swarm, lost)
        swarm.wait_finished(FINISH_S)
        went_back(swarm, 1 - first)
        assert_same(swarm, undisturbed)


def kill_every_trainer(swarm: LocalSwarm) -> None:
    """What is later than any disk is in the peers' memory: no step is trained twice."""
    kill_at_once(swarm.trainers)
    loads = {peer.name: log_of(peer).count("; loading version") for peer in swarm.peers}
    before = swarm.json_file("trainer-0").read_text().splitlines()
    start_all_again(swarm, swarm.trainers)
    wait_amid_steps(swarm, len(before))
    assert "from the memory of peers" in logs_of(swarm.trainers)
    for peer in swarm.peers:
        assert log_of(peer).count("; loading version") == loads[peer.name]
        assert "is here already" in log_of(peer)
    steps = [json.loads(line)["step"] for line in swarm.json_file("trainer-0").read_text().splitlines()]
    assert steps[: len(before)] == list(range(len(before)))
    after = steps[len(before) :]  # the first one may have been told before; the other trainer may have led first
    assert after == sorted(set(after))
    assert min(after, default=STEPS) >= len(before) - 1


def stage_of(peer: LocalProcess) -> int | None:
    """Which stage a peer has said last that it serves."""
    said = re.findall(r"serving stage (\d+) from", log_of(peer))
    return int(said[-1]) if said else None


def kill_stage(swarm: LocalSwarm, stage: int, but: Sequence[LocalProcess] = ()) -> list[LocalProcess]:
    """Kill all that serve a stage, and return them. but: those that are dead."""
    alive = [peer for peer in swarm.peers if peer not in but]
    victims = [peer for peer in alive if stage_of(peer) == stage]
    assert 0 < len(victims) < len(alive)
    kill_at_once(victims)
    return victims


def went_back(swarm: LocalSwarm, stage: int) -> None:
    assert f"stage {stage} has lost everybody: back from version " in logs_of(swarm.trainers)


@pytest.mark.extended
def test_the_only_peer_of_a_stage_leaves_at_once_and_comes_back(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """Its state is in its folder: nobody goes back, and no step is trained twice.

    The other stage is frozen meanwhile: else its drain may end before the second Ctrl-C, since a version is on disk.
    """
    with undisturbed.swarm(tmp_path / "swarm") as swarm:
        trainer = swarm.start_trainer()
        peers = [swarm.start_peer(stage=stage) for stage in range(STAGES)]
        swarm.wait_steps(EVERY + 2, FINISH_S)
        peers[0].send(signal.SIGSTOP)
        peers[1].send(signal.SIGINT)
        swarm.wait(lambda: "no other peer serves stage 1" in log_of(peers[1]), "the cost of leaving", FINISH_S)
        peers[1].send(signal.SIGINT)
        assert peers[1].process.wait(FINISH_S) == 0
        peers[0].send(signal.SIGCONT)
        assert "left with its state in the state folder" in log_of(peers[1])
        again = swarm.start_again(peers[1])
        swarm.wait_finished(FINISH_S)
        assert "is here already" in log_of(again)
        assert "loading version" not in log_of(again)
        assert "back from version" not in log_of(trainer)
        lines = swarm.json_file("trainer-0").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(STEPS)), "each once"
        assert not any((swarm.state_folder(again.name) / "left").rglob("*.safetensors")), "it is of no use any more"
        assert_same(swarm, undisturbed)
