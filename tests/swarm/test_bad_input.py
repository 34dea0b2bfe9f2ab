"""What users get wrong: each mistake is told in one clear line, soon, with an exit code, and costs nothing."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm, toml_text
from swarmflow.runtime.transport.invite import Invite
from tests.owners import invite_of
from tests.swarm.commands import Ended, forked, swarmflow
from tests.swarm.runs import TINY_LLAMA

pytestmark = pytest.mark.swarm

# What fails before torch is loaded, which alone takes longer.
LIGHT_CPU_S = 1.0
FINISH_S = 60.0
NOBODY = "QmNnooDu7bfjPFoTZYxMNLWUQJyrVwtbZg5gBMjTezGAJN"
Settings = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a corpus, where no run of this machine is found."""
    folder = tmp_path_factory.mktemp("bad-input")
    (folder / "corpus.txt").write_bytes(b"the quick brown fox jumps over the lazy dog\n" * 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder


def settings(work: Path, **train: int) -> Settings:
    """A run of two stages that is done in a moment."""
    return {
        "run": {"name": "bad-input", "output": "out"},
        "model": {"config": dict(TINY_LLAMA), "cut": [1]},
        "data": {"path": str(work / "corpus.txt"), "seq_len": 16},
        "optimizer": {"lr": 1e-3},
        "train": {"steps": 4, "microbatches": 2, "microbatch_sequences": 1, "checkpoint_every": 2, **train},
    }


def alone(work: Path) -> Settings:
    """The same as one stage."""
    return {**settings(work), "model": {"config": dict(TINY_LLAMA), "stages": 1}}


@pytest.fixture(scope="module")
def live(work: Path, forks: ForkServer) -> Iterator[LocalSwarm]:
    """A run whose trainer waits for peers."""
    with LocalSwarm(work / "live", settings(work), forks=forks) as swarm:
        swarm.start_trainer()
        yield swarm
        assert swarm.trainers[0].exit_code is None, "a newcomer's mistake must not end the run"


@pytest.fixture(scope="module")
def finished(work: Path, forks: ForkServer) -> Path:
    """The RUN.toml of a run of one stage that is finished; beside it lies its output, with the versions 2 and 4."""
    for steps in (2, 4):  # a run that ends at once need not have copied version 2 to the trainer's disk before
        run = alone(work)
        run["train"] = {**run["train"], "steps": steps}
        with LocalSwarm(work / "finished", run, forks=forks) as swarm:
            swarm.start_trainer()
            swarm.start_peer()
            swarm.wait_finished(FINISH_S)
            assert [step["step"] for step in swarm.steps()] == list(range(steps))
    # As if its state folder had been the default one, which is found again without being named.
    (swarm.folder / "trainer-0").rename(swarm.output / "state" / "trainer-0")
    for link in (swarm.output / "state").iterdir():
        if link.is_symlink():
            link.unlink()
    return swarm.run_file


@pytest.fixture
def heavy(forks: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ended]:
    """Runs to its end a command that loads torch before it finds the mistake."""
    return partial(forked, forks, tmp_path_factory.mktemp("heavy"))


def run_file(folder: Path, run: Settings) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "RUN.toml").write_text(toml_text(run), encoding="utf-8")
    return folder / "RUN.toml"


# --- before the network -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """A change of a good RUN.toml, and words of the complaint."""

    change: Callable[[Settings, Path], object]
    expected: tuple[str, ...]


MISTAKES = {
    "no data": Mistake(lambda run, at: run["data"].update(path=str(at / "no.txt")), ("no.txt",)),
    "empty data": Mistake(lambda run, at: run["data"].update(path=str(_file(at, b""))), ("data.txt", "no text")),
    "short data": Mistake(lambda run, at: run["data"].update(path=str(_file(at, b"short"))), ("5 tokens", "seq_len")),
    "large tokenizer": Mistake(
        lambda run, at: run["model"].update(config={**TINY_LLAMA, "vocab_size": 100}),
        ("256 tokens", "vocab_size = 100"),
    ),
    "no model": Mistake(lambda run, at: run.update(model={"path": "nowhere", "stages": 2}), ("nowhere", "config.json")),
    "unknown key": Mistake(lambda run, at: run["train"].update(stepz=3), ("train.stepz", "steps")),
    "impossible value": Mistake(lambda run, at: run["train"].update(steps=-1), ("train.steps = -1", "at least 1")),
    "unknown router": Mistake(lambda run, at: run["train"].update(router="flows"), ("train.router", '"flow"')),
    "output under a file": Mistake(
        lambda run, at: run["run"].update(output=str(_file(at, b"x") / "out")), ("data.txt", "Not a directory")
    ),
}


def _file(folder: Path, content: bytes) -> Path:
    (folder / "data.txt").write_bytes(content)
    return folder / "data.txt"


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_run_file_is_told_before_torch_is_loaded(name: str, work: Path, tmp_path: Path) -> None:
    run = settings(work)
    MISTAKES[name].change(run, tmp_path)
    ended = swarmflow("trainer", run_file(tmp_path, run))
    for text in MISTAKES[name].expected:
        assert text in ended.complaint
    assert ended.cpu_s < LIGHT_CPU_S


GARBAGE = "swarmflow2:garbage!"
GOOD = str(invite_of(f"/ip4/127.0.0.1/tcp/9/p2p/{NOBODY}"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["peer", "--join", GARBAGE], "no invite"),
        (["peer", "--join", GOOD[:40]], "truncated"),
        (["peer", "--join", GOOD[:-8] + "AAAAAAAA"], "damaged"),
        (["peer"], "no run is alive on this machine: give --join INVITE (or SWARMFLOW_JOIN)"),
        (["peer", "--join", GOOD, "--stage", "x"], "--stage x"),
        (["peer", "--join", GOOD, "--stage", "-1"], "--stage -1"),
        (["peer", "--join", GOOD, "--device", "foo"], "--device foo: allowed are auto, cpu, cuda:N and mps"),
        (["status"], "no run is alive"),
        (["status", "--join", GARBAGE], "no invite"),
        (["export", "--out", "x"], "no run is alive"),
        (["export", "--out", "x", "--state-dir", "nowhere"], "nowhere"),
        (["export", "--out", "x", "--state-dir", "nowhere", "--join", GOOD], "not both"),
        (["trainer", "nowhere.toml"], "nowhere.toml"),
    ],
    ids=" ".join,
)
def test_a_mistake_on_the_command_line_is_told_before_torch_is_loaded(
    arguments: list[str], expected: str, tmp_path: Path
) -> None:
    ended = swarmflow(*arguments, environment={"XDG_RUNTIME_DIR": str(tmp_path)})  # where no run is found
    assert expected in ended.complaint
    assert ended.cpu_s < LIGHT_CPU_S


def test_a_full_disk_is_told(work: Path, tmp_path: Path) -> None:
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

    ended = swarmflow("trainer", run_file(tmp_path, settings(work)), before=no_room)
    assert "token cache" in ended.complaint
    assert "File too large" in ended.complaint


def test_all_that_is_wrong_with_a_model_is_told_before_the_invite(
    work: Path, tmp_path: Path, heavy: Callable[..., Ended]
) -> None:
    run = settings(work)
    run["model"] = {"config": {**TINY_LLAMA, "hidden_sise": 16}, "stages": 3}
    run["data"]["seq_len"] = 40
    ended = heavy("trainer", run_file(tmp_path, run), "--invite-file", tmp_path / "invite")
    assert "3 problems" in ended.complaint
    assert "hidden_sise: models of type llama have no such key (did you mean hidden_size?)" in ended.complaint
    assert "seq_len = 40 is more than the 32 positions" in ended.complaint
    assert "3 stages asked of a model with 2 blocks" in ended.complaint
    assert not (tmp_path / "invite").exists()


def test_a_device_that_is_not_there_is_told(work: Path, heavy: Callable[..., Ended]) -> None:
    assert "--device cuda:99: this machine has" in heavy("peer", "--join", GOOD, "--device", "cuda:99").complaint


def test_an_address_where_nobody_is_is_told(work: Path, heavy: Callable[..., Ended]) -> None:
    complaint = heavy("peer", "--join", GOOD).complaint
    assert "nobody answers at /ip4/127.0.0.1/tcp/9" in complaint


@pytest.mark.parametrize("option", ["--listen", "--metrics-port"])
def test_a_port_in_use_is_told(
    option: str, live: LocalSwarm, work: Path, tmp_path: Path, heavy: Callable[..., Ended]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        value = f"127.0.0.1:{port}" if option == "--listen" else str(port)
        complaint = heavy("trainer", run_file(tmp_path, settings(work)), option, value).complaint
    assert str(port) in complaint
    assert option in complaint


def test_an_announced_address_that_nobody_reaches_is_told_by_the_first_who_joins(
    work: Path, tmp_path: Path, forks: ForkServer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, closed = one.getsockname()[1], other.getsockname()[1]
    with LocalSwarm(tmp_path / "announced", settings(work), forks=forks) as swarm:
        trainer = swarm.start_trainer("--listen", f"127.0.0.1:{port}", "--announce", f"127.0.0.1:{closed}")
        swarm.start_peer()
        warning = f"--announce 127.0.0.1:{closed} cannot be reached by process"
        swarm.wait(lambda: warning in trainer.log.read_text(encoding="utf-8"), "the warning", FINISH_S)


# --- a run that one asks to join --------------------------------------------------------------------------------------


def test_a_stage_that_the_run_has_not_is_told(live: LocalSwarm, heavy: Callable[..., Ended]) -> None:
    complaint = heavy("peer", "--join", live.invite, "--stage", "99").complaint
    assert "--stage 99: this run has the stages 0 to 1" in complaint


@pytest.mark.extended
def test_another_version_of_the_software_is_told(live: LocalSwarm) -> None:
    complaint = swarmflow("peer", "--join", live.invite, other_version=True).complaint
    assert "not 0.0.1: install that version" in complaint


@pytest.mark.extended
def test_another_run_at_the_same_address_is_told(live: LocalSwarm, heavy: Callable[..., Ended], tmp_path: Path) -> None:
    gone = str(invite_of(*Invite.parse(live.invite).trainers))
    assert "another run" in swarmflow("status", "--join", gone).complaint
    assert "another run" in heavy("export", "--join", gone, "--out", tmp_path / "out").complaint


def test_a_trainer_with_another_setting_is_told_which(
    live: LocalSwarm, work: Path, tmp_path: Path, heavy: Callable[..., Ended]
) -> None:
    run = settings(work, microbatches=3)
    complaint = heavy("trainer", run_file(tmp_path, run), "--join", live.invite).complaint
    assert "train.microbatches = 3, but the run bad-input has train.microbatches = 2" in complaint


def test_a_state_folder_in_use_is_told(live: LocalSwarm, work: Path, heavy: Callable[..., Ended]) -> None:
    complaint = heavy("trainer", live.run_file, "--state-dir", live.folder / "trainer-0").complaint
    assert "in use by another trainer" in complaint


# --- a run that one goes on with --------------------------------------------------------------------------------------


def test_a_finished_run_says_so_and_is_done(finished: Path) -> None:
    ended = swarmflow("trainer", finished)
    assert ended.code == 0, ended.err
    assert "finished" in ended.out
    assert ended.cpu_s < LIGHT_CPU_S


def test_status_tells_how_a_run_ended_and_where_its_result_is(finished: Path) -> None:
    log = (finished.parent / "trainer-0.log").read_text(encoding="utf-8")
    invite = next(line for line in log.splitlines() if "--join" in line).split("--join")[1]
    result = f"run bad-input has ended at step 4 of 4: the result is in {finished.with_name('out')}/final"
    assert swarmflow("status", "--join", invite).complaint == f"{result}; nobody answers for it any more"


def test_a_changed_setting_of_an_earlier_run_is_told(finished: Path, work: Path) -> None:
    other = finished.with_name("OTHER.toml")
    run = alone(work)
    run["optimizer"]["lr"] = 2e-3
    other.write_text(toml_text(run), encoding="utf-8")
    ended = swarmflow("trainer", other)
    assert "optimizer.lr = 0.002, but the run in" in ended.complaint
    assert ended.cpu_s < LIGHT_CPU_S


def test_changed_data_of_an_earlier_run_are_told(finished: Path, work: Path, tmp_path: Path) -> None:
    other = finished.with_name("OTHER.toml")
    run = alone(work)
    run["data"]["path"] = str(_file(tmp_path, b"other text " * 40))
    other.write_text(toml_text(run), encoding="utf-8")
    ended = swarmflow("trainer", other)
    assert "the data is not that of the run in" in ended.complaint
    assert ended.cpu_s < LIGHT_CPU_S


@pytest.fixture
def copied(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run with the output of the finished one, whose end this machine remembers elsewhere."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    shutil.copytree(finished.with_name("out"), tmp_path / "run" / "out")
    return tmp_path / "run"


def test_one_corrupt_checkpoint_leaves_the_other(copied: Path, work: Path, forks: ForkServer) -> None:
    flip_a_byte(next(copied.glob("out/state/trainer-0/checkpoints/version-00000004/stage-0.*")))
    with LocalSwarm(copied, alone(work), forks=forks) as swarm:
        trainer = swarm.start_trainer()
        log = trainer.log.read_text(encoding="utf-8")
        assert "stage-0.safetensors is corrupt" in log
        assert "resuming at version 2" in log
        trainer.send(signal.SIGTERM)
        assert trainer.process.wait(FINISH_S) == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "all"])
def test_lost_checkpoints_never_start_a_run_anew(damage: str, copied: Path, work: Path, forks: ForkServer) -> None:
    """Others may have copies: it waits for them, and says what it lacks."""
    checkpoints = copied / "out" / "state" / "trainer-0" / "checkpoints"
    for path in checkpoints.glob("*/stage-0.*"):
        if damage == "flip":
            flip_a_byte(path)
        elif damage == "cut":
            os.truncate(path, path.stat().st_size - 1)
        else:
            path.unlink()
    if damage == "all":
        shutil.rmtree(checkpoints)
    with LocalSwarm(copied, alone(work), forks=forks) as swarm:
        trainer = swarm.start_trainer()
        swarm.start_peer()
        reason = "version 4, which nobody here holds: start the peers and trainers that kept it"
        swarm.wait(lambda: "waits to serve stage" in trainer.log.read_text(encoding="utf-8"), "the peer", FINISH_S)
        log = trainer.log.read_text(encoding="utf-8")
        assert f"waiting for {reason}" in log
        assert ("stage-0.safetensors" in log) == (damage != "all")
        assert swarm.status()["waiting_for"] == reason
        assert not swarm.steps()


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
