"""`swarmflow status` and `dashboard`, asked of a run that waits, so that nothing depends on when it is asked."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm
from swarmflow.runtime.operations.asking import ASK_S
from swarmflow.runtime.transport.invite import Invite
from tests.owners import invite_of
from tests.swarm.commands import Ended, ended, started, swarmflow

pytestmark = pytest.mark.swarm

FINISH_S = 60.0
STAGES = 3
WITHIN_S = 5.0
MODEL = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": STAGES,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 32,
}


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[LocalSwarm]:
    """Two trainers, and peers of all stages but the last: it waits for that one."""
    folder = tmp_path_factory.mktemp("status")
    (folder / "corpus.txt").write_bytes(b"the quick brown fox jumps over the lazy dog\n" * 20)
    run: dict[str, dict[str, Any]] = {
        "run": {"name": "test-status", "output": "out"},
        "model": {"config": dict(MODEL), "cut": [1, 2]},
        "data": {"path": str(folder / "corpus.txt"), "seq_len": 16},
        "train": {"steps": 4, "microbatches": 2, "microbatch_sequences": 1},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        with LocalSwarm(folder / "swarm", run, forks=forks) as swarm:
            swarm.start_trainer("--page", "0")
            swarm.start_trainer()
            for stage in range(STAGES - 1):
                swarm.start_peer(stage=stage)
            swarm.wait(lambda: _all_there(swarm.status()), "everybody", FINISH_S)
            yield swarm


def _all_there(status: dict[str, Any]) -> bool:
    peers = [peer for stage in status["stages"] for peer in stage["peers"]]
    return len(status["trainers"]) == 2 and [peer["phase"] for peer in peers] == ["ready"] * (STAGES - 1)


def asked(*arguments: str, folder: Path | None = None) -> Ended:
    """The command. folder: where runs of this machine are found, instead of where they are."""
    return swarmflow("status", *arguments, environment={"XDG_RUNTIME_DIR": str(folder)} if folder else None)


def test_it_tells_the_runs_state(waiting: LocalSwarm) -> None:
    status = waiting.status()
    assert (status["run"], status["phase"], status["steps"]) == ("test-status", "gathering", 4)
    assert status["waiting_for"] == f"a peer for stage {STAGES - 1}"
    assert (status["step"], status["version"], status["durable_version"], status["loss"]) == (0, 0, 0, None)
    assert [stage["stage"] for stage in status["stages"]] == list(range(STAGES))
    assert [len(stage["peers"]) for stage in status["stages"]] == [1, 1, 0]
    for stage in status["stages"]:
        for peer in stage["peers"]:
            assert {"id", "phase", "capacity", "held", "queued", "version", "name", "speed"} <= peer.keys()
            assert (peer["address"], peer["capacity"] > 0) == ("127.0.0.1", True)
    assert sorted(trainer["leads"] for trainer in status["trainers"]) == [False, True]


@pytest.fixture(scope="module")
def torch_cpu_s() -> float:
    """What a process computes to load torch, which a question does not need: twice of what one takes."""
    return ended([sys.executable, "-c", "import torch"]).cpu_s


@pytest.mark.extended
def test_it_costs_little_beside_a_trainer_and_from_afar(
    waiting: LocalSwarm, tmp_path: Path, torch_cpu_s: float
) -> None:
    here, there = asked("--json"), asked("--json", "--join", waiting.invite, folder=tmp_path)
    found = [json.loads(told.out) for told in (here, there)]
    assert found[0]["run_id"] == found[1]["run_id"] == Invite.parse(waiting.invite).run_id
    assert here.cpu_s < torch_cpu_s
    assert there.cpu_s < torch_cpu_s
    shown = asked()
    assert f"waits for a peer for stage {STAGES - 1}" in shown.out
    assert shown.cpu_s < torch_cpu_s


def test_a_trainer_that_does_not_lead_asks_the_one_that_does(waiting: LocalSwarm, tmp_path: Path) -> None:
    status = waiting.status()
    follower = next(trainer["name"] for trainer in status["trainers"] if not trainer["leads"])
    invite = Invite.parse(waiting.invite)
    log = waiting.trainers[1].log.read_text(encoding="utf-8")
    joined = Invite.parse(next(line for line in log.splitlines() if "--join" in line).split("--join")[1])
    addresses = tuple(text for text in joined.trainers if text.endswith(follower))
    assert addresses
    told = asked("--json", "--join", str(invite.at(addresses)), folder=tmp_path)
    assert json.loads(told.out)["trainers"] == status["trainers"]


def test_another_run_is_not_told_of(waiting: LocalSwarm, tmp_path: Path) -> None:
    other = str(invite_of(*Invite.parse(waiting.invite).trainers))
    assert "another run" in asked("--join", other, folder=tmp_path).complaint


@pytest.fixture(scope="module")
def dashboard(waiting: LocalSwarm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalProcess]:
    """A page of the run, served by a process that takes no part in it."""
    log = tmp_path_factory.mktemp("dashboard") / "dashboard.log"
    with started(log, "dashboard", "--join", waiting.invite) as process:
        yield process


def page_of(swarm: LocalSwarm, process: LocalProcess) -> str:
    """The address of the page that a process serves."""
    pattern = re.compile(r"page: (http://127\.0\.0\.1:\d+/)")
    found = swarm.wait(lambda: pattern.search(process.log.read_text(encoding="utf-8")), "the page's address", FINISH_S)
    return str(found[1])


def shown(
    swarm: LocalSwarm, url: str, ready: Callable[[dict[str, Any]], object], what: str, after: int = 0
) -> dict[str, Any]:
    """What a page gets of the run, as soon as it is so."""

    def look() -> dict[str, Any] | None:
        with urllib.request.urlopen(f"{url}api/run?after={after}", timeout=FINISH_S) as answer:
            run: dict[str, Any] = json.load(answer)
        return run if ready(run) else None

    return swarm.wait(look, what, FINISH_S)


def test_pages_of_a_trainer_and_of_another_process_show_the_run_and_a_death(
    waiting: LocalSwarm, dashboard: LocalProcess
) -> None:
    pages = [page_of(waiting, process) for process in (waiting.trainers[0], dashboard)]
    before = [shown(waiting, url, lambda run: run["view"], "the view") for url in pages]
    for run in before:
        assert (run["mode"], run["error"], run["view"]["run"]) == ("live", None, "test-status")
        assert run["view"]["waiting_for"] == f"a peer for stage {STAGES - 1}"
        assert "serving" in {event["kind"] for event in run["events"]}
        assert "died" not in {event["kind"] for event in run["events"]}
    victim = waiting.peers[0]
    victim.kill()
    for url, former in zip(pages, before, strict=True):
        seen = former["events"][-1]["seq"]
        run = shown(waiting, url, lambda run: run["events"], "an event", after=seen)
        [died] = [event for event in run["events"] if event["kind"] == "died"]
        assert (died["stage"], died["level"], died["seq"] > seen) == (0, "warning", True)
        assert died["peer"] == former["view"]["stages"][0]["peers"][0]["id"]
        assert [len(stage["peers"]) for stage in run["view"]["stages"]] == [0, 1, 0]
        with urllib.request.urlopen(f"{url}api/steps", timeout=FINISH_S) as answer:
            assert json.load(answer) == {"steps": []}


@pytest.mark.extended
def test_trainers_that_do_not_answer_are_waited_for_a_few_seconds(
    waiting: LocalSwarm, tmp_path: Path, dashboard: LocalProcess, torch_cpu_s: float
) -> None:
    for trainer in waiting.trainers:
        trainer.send(signal.SIGSTOP)
    began_s = time.monotonic()
    swarmflow("status", "--help")
    start_s = time.monotonic() - began_s  # what a command takes here that asks nobody
    for folder in (None, tmp_path):
        began_s = time.monotonic()
        told = asked("--join", waiting.invite, folder=folder)
        assert f"run test-status does not answer: nobody has answered within {ASK_S:g} s" in told.complaint
        assert time.monotonic() - began_s < WITHIN_S + 2 * start_s
        assert told.cpu_s < torch_cpu_s
    for trainer in waiting.trainers:
        trainer.kill()
    gone = asked("--join", waiting.invite)
    assert "run test-status does not answer: " in gone.complaint
    assert gone.complaint.endswith("is its trainer running?")
    assert gone.cpu_s < torch_cpu_s
    page = page_of(waiting, dashboard)
    lost = shown(waiting, page, lambda run: run["error"], "why there is no view")
    assert ("\n" in lost["error"], lost["view"]["run"]) == (False, "test-status"), "the last view stays"
