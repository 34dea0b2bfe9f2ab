"""The checks against a run: of a real trainer, and with each fault made."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from swarmflow.compute.demands import stage_memory
from swarmflow.doctor.diagnosis import Diagnosis, Level, as_json, fail
from swarmflow.doctor.examination import Checkup, examine
from swarmflow.doctor.swarm import check_invite, check_stages, check_trainer, judge_clock, judge_link, judge_reach
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from swarmflow.peer_memory import PROCESS_BYTES, limit_for
from swarmflow.runtime.operations.own_reach import Answer, ReachEvidence
from swarmflow.runtime.transport.invite import Invite
from tests.owners import OWNER, invite_of
from tests.runtime.manifests import manifest
from tests.swarm.commands import forked

NOBODY = "/ip4/127.0.0.1/tcp/9/p2p/QmNnooDu7bfjPFoTZYxMNLWUQJyrVwtbZg5gBMjTezGAJN"
MODEL = {
    **{"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 32},
}


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[LocalSwarm]:
    """A trainer that waits for peers."""
    folder = tmp_path_factory.mktemp("doctor")
    (folder / "corpus.txt").write_bytes(b"the quick brown fox jumps over the lazy dog\n" * 20)
    run: dict[str, dict[str, Any]] = {
        "run": {"name": "test-doctor", "output": "out"},
        "model": {"config": MODEL, "stages": 2},
        "data": {"path": str(folder / "corpus.txt"), "seq_len": 16},
        "train": {"steps": 4, "microbatches": 2, "microbatch_sequences": 1},
    }
    with LocalSwarm(folder / "swarm", run, forks=forks) as started:
        started.start_trainer()
        yield started


def examined(invite: str, clock: Callable[[], float] = time.time, memory_limit_bytes: int | None = None) -> Checkup:
    """Return what is examined with one invite."""
    return Checkup(Invite.parse(invite), "cpu", "127.0.0.1:0", clock=clock, memory_limit_bytes=memory_limit_bytes)


async def found(what: Checkup) -> dict[str, Diagnosis]:
    return {diagnosis.check: diagnosis async for diagnosis in examine(what)}


def lines(diagnoses: dict[str, Diagnosis], level: Level) -> list[str]:
    return [diagnosis.lines() for diagnosis in diagnoses.values() if diagnosis.level is level]


@pytest.mark.swarm
def test_who_can_be_a_peer_of_a_run_passes(swarm: LocalSwarm, forks: ForkServer, tmp_path: Path) -> None:
    where = ("--device", "cpu", "--listen", "127.0.0.1:0", "--state-dir", tmp_path)
    ended = forked(forks, tmp_path, "doctor", swarm.invite, *where, "--json")
    document = json.loads(ended.out)
    assert (ended.code, document["ok"], ended.err) == (0, True, "")
    checks = {each["check"]: each for each in document["checks"]}
    swarms = ["invite", "trainer", "clock", "version", "stages", "link", "reach"]
    assert list(checks)[-len(swarms) :] == swarms
    assert {name: checks[name]["level"] for name in swarms} == dict.fromkeys(swarms, "ok")
    assert "of run test-doctor, for a " in checks["invite"]["found"]
    assert "connected within its machine" in checks["reach"]["found"]


@pytest.mark.swarm
@pytest.mark.asyncio
async def test_a_clock_that_is_off_fails(swarm: LocalSwarm) -> None:
    invite = Invite.parse(swarm.invite)
    for off_s, level, direction in ((10.0, Level.FAIL, "ahead of"), (-10.0, Level.FAIL, "behind"), (0.0, Level.OK, "")):
        began_s, clock = time.monotonic(), lambda off_s=off_s: time.time() + off_s
        trainer, *judged = await check_trainer(invite, clock)
        assert len(judged) == 1, trainer.lines()
        [told] = judged
        uncertain_s = time.monotonic() - began_s
        assert (trainer.level, told.level) == (Level.OK, level), told.lines()
        assert direction in told.found
        assert float(told.found.split()[0]) == pytest.approx(abs(off_s), abs=uncertain_s)
        assert ("set the clock by NTP" in told.advice) == (level is Level.FAIL)


@pytest.mark.swarm
@pytest.mark.asyncio
async def test_a_trainer_that_is_stopped_fails(swarm: LocalSwarm) -> None:
    """Its daemon is a process of its own, which still takes connections."""
    [trainer] = swarm.trainers
    trainer.send(signal.SIGSTOP)
    try:
        [failed] = await check_trainer(Invite.parse(swarm.invite), answer_s=3.0)
    finally:
        trainer.send(signal.SIGCONT)
    assert failed.level is Level.FAIL
    assert "is connected, and has not answered within 3 s" in failed.found


@pytest.mark.swarm
@pytest.mark.asyncio
async def test_memory_for_no_stage_of_the_run_fails(swarm: LocalSwarm) -> None:
    diagnoses = await found(examined(swarm.invite, memory_limit_bytes=limit_for(PROCESS_BYTES + 99)))
    [failed] = lines(diagnoses, Level.FAIL)
    assert "stages of the run take" in failed
    assert "none fits into 100 bytes" in failed
    assert diagnoses["link"].level is Level.OK, "the rest is examined all the same"


@pytest.mark.asyncio
async def test_a_trainer_that_cannot_be_reached_fails() -> None:
    diagnoses = await found(examined(str(invite_of(NOBODY))))
    [failed] = lines(diagnoses, Level.FAIL)
    assert list(diagnoses)[-2:] == ["invite", "trainer"]
    assert failed.startswith("fail  trainer")
    assert "-> ask whether its trainer runs, and for a current invite" in failed


def test_an_invite_that_has_expired_fails() -> None:
    invite = Invite(OWNER.public, "run", (NOBODY,), OWNER.certify("peer", 1_000_000))
    assert check_invite(invite, 1_000_000.0).level is Level.FAIL
    assert "for 2.0 days more" in check_invite(invite, 1_000_000.0 - 2 * 86_400).found
    assert check_invite(Invite(OWNER.public, "run", (NOBODY,)), 0.0).level is Level.OK


def test_text_of_others_forges_no_line_of_a_diagnosis() -> None:
    text = "\x1b]0;owned\x07\x1b[2J\nok    trainer    fine\x9b31m\u202e"
    named = check_invite(Invite(OWNER.public, text, (NOBODY,)), 0.0)
    refused = fail("trainer", text, text)
    assert named.lines().isprintable()
    assert all(line.isprintable() for line in refused.lines().split("\n"))
    assert refused.lines().count("\n") == 1, "the advice"
    shown = as_json([named, refused])
    assert shown.replace("\n", "").isprintable()
    assert json.loads(shown)["checks"][1]["found"] == text


@pytest.mark.parametrize(
    ("ahead_s", "uncertain_s", "level"),
    [
        (0.5, 0.0, Level.OK),
        (-1.5, 0.1, Level.WARN),
        (1.5, 0.6, Level.OK),
        (3.5, 0.6, Level.WARN),
        (-3.5, 0.1, Level.FAIL),
    ],
)
def test_a_clock_is_judged_by_what_is_certain(ahead_s: float, uncertain_s: float, level: Level) -> None:
    assert judge_clock(ahead_s, uncertain_s).level is level


def test_a_link_is_as_slow_as_its_slower_direction() -> None:
    assert judge_link(0.02, 2e6, 2e6).found == "to the trainer: 16 Mbit/s down, 16 Mbit/s up, round trip 20 ms"
    assert [judge_link(0.02, *rates).level for rates in ((2e6, 2e6), (2e6, 1e6), (1e6, 2e6))] == ["ok", "warn", "warn"]


def test_how_others_connect_is_told_with_what_to_do() -> None:
    outside, relay = "/ip4/9.9.9.9/tcp/1", "/ip4/9.9.9.9/tcp/1/p2p/QmRelay/p2p-circuit"
    relayed, punched, public = ReachEvidence(), ReachEvidence(), ReachEvidence()
    relayed.connected({"A": [outside]}, [f"{relay}/p2p/QmMe"])
    punched.connected({"A": [relay, outside]}, [f"{relay}/p2p/QmMe"])
    public.asked([("abc", Answer("9.9.9.7", 7000))])
    kinds = [judge_reach(evidence) for evidence in (relayed, punched, public, ReachEvidence())]
    assert [each.level for each in kinds] == ["warn", "warn", "ok", "warn"]
    assert ["--listen 0.0.0.0:PORT" in each.advice for each in kinds] == [True, True, False, True]
    starts = ("a NAT that lets no holes", "a NAT that lets holes", "others reach this peer directly", "whether others")
    assert all(each.found.startswith(start) for each, start in zip(kinds, starts, strict=True))


def test_beside_a_device_that_fails_the_rest_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in ("memory_reserved", "mem_get_info"):
        monkeypatch.setattr(torch.cuda, name, fail)
    assert Checkup(None, "cuda:0", "127.0.0.1:0").stage_bytes_max == 0


def test_a_stage_whose_state_has_room_in_ram_alone_fits_beside_a_gpu() -> None:
    of = manifest(precision="bf16")
    on_device = [stage_memory(of, stage).device_bytes for stage in range(of.stages)]
    in_two = [stage_memory(of, stage, in_host_memory=True) for stage in range(of.stages)]
    memory_bytes, host_bytes = min(on_device) - 1, max(each.host_bytes for each in in_two)
    assert max(each.device_bytes for each in in_two) < memory_bytes
    assert check_stages(of, memory_bytes).level is Level.FAIL
    assert check_stages(of, memory_bytes, min(each.host_bytes for each in in_two) - 1).level is Level.FAIL
    found = check_stages(of, memory_bytes, host_bytes)
    assert found.level is Level.OK
    assert "0, 1 with the state in RAM" in found.lines()
