"""The checks of this machine, each with its fault made."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from swarmflow.commands.doctor import doctor
from swarmflow.doctor.diagnosis import Diagnosis, Level
from swarmflow.doctor.machine import (
    check_daemon,
    check_device,
    check_disk,
    check_memory,
    check_port,
    check_python,
    check_torch,
)
from tests.disks import small_disk


@pytest.fixture
def other_hivemind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of p2pd in another package `hivemind`, which is the one that is found."""
    package = tmp_path / "packages" / "hivemind"
    (package / "hivemind_cli").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "hivemind", raising=False)
    monkeypatch.syspath_prepend(str(package.parent))
    return package / "hivemind_cli" / "p2pd"


def assert_fails(diagnosis: Diagnosis, *texts: str) -> None:
    assert diagnosis.level is Level.FAIL
    assert diagnosis.advice
    assert all(text in diagnosis.lines() for text in texts), diagnosis.lines()


@pytest.mark.asyncio
async def test_a_machine_that_can_be_a_peer_passes(tmp_path: Path) -> None:
    diagnoses = [check_python(), check_torch(), check_device("cpu"), check_memory(), check_disk(tmp_path / "not-yet")]
    diagnoses += [await check_daemon(), check_port("127.0.0.1:0")]
    assert [diagnosis.lines() for diagnosis in diagnoses if diagnosis.level is Level.FAIL] == []
    assert not any(tmp_path.iterdir())


def test_a_port_that_another_process_has_fails() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        assert_fails(check_port(taken), f"cannot listen on {taken}", "end the other process")
    assert check_port(taken).level is Level.OK
    assert_fails(check_port("192.0.2.1:7400"), "cannot listen on 192.0.2.1:7400")
    assert_fails(check_port("nonsense"))


@pytest.mark.asyncio
async def test_a_daemon_that_is_missing_or_does_not_start_fails(other_hivemind: Path) -> None:
    assert_fails(await check_daemon(), "p2pd is not installed", "install swarmflow-train again")
    other_hivemind.write_text("#!/bin/sh\necho built for another processor\nexit 1\n")
    other_hivemind.chmod(0o644)
    assert_fails(await check_daemon(), "is not executable", f"chmod +x {other_hivemind}")
    other_hivemind.chmod(0o755)
    assert_fails(await check_daemon(), "ended at its start: built for another processor")
    other_hivemind.write_text("#!/of/another/system\n")
    assert_fails(await check_daemon(), f"cannot run hivemind's p2pd ({other_hivemind})")


def test_too_little_memory_fails() -> None:
    assert_fails(check_memory(300_000_000), "300.0 MB of --memory-limit", "raise --memory-limit")
    assert check_memory(900_000_000).level is Level.WARN
    assert check_memory(1 << 60).level is Level.OK, "what is free counts"


def test_a_disk_that_is_full_or_takes_no_files_fails(tmp_path: Path) -> None:
    assert_fails(check_disk(Path(os.devnull) / "state"), "/dev/null/state cannot be written to: Not a directory")
    assert_fails(check_disk(tmp_path / ("x" * 300)), "xx cannot be written to: File name too long")
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        small = check_disk(disk.path)
        assert small.level is Level.WARN
        assert "--no-copies" in small.advice
        disk.fill()
        assert_fails(check_disk(disk.path / "state"), "No space left on device", "--state-dir FOLDER")
        disk.empty()
        disk.remount("ro")
        assert_fails(check_disk(disk.path), "Read-only file system")


def test_a_device_that_is_not_there_fails() -> None:
    assert_fails(check_device("cuda:999"), "--device cuda:999: this machine has")
    assert_fails(check_device("tpu"), "--device tpu: allowed are")


def test_a_torch_that_cannot_be_loaded_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert_fails(check_torch(), "torch cannot be loaded", "install swarmflow-train again")


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch uses the NVIDIA driver of this machine")
def test_a_driver_that_torch_does_not_use_is_worth_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = check_torch()
    assert found.level is Level.WARN
    assert "there is an NVIDIA driver" in found.found


def test_the_command_prints_what_it_finds_and_fails_if_something_does(tmp_path: Path) -> None:
    where = ["--device", "cpu", "--state-dir", str(tmp_path)]
    well = CliRunner().invoke(doctor, [*where, "--json"], standalone_mode=False)
    document = json.loads(well.output)
    checks = ["python", "torch", "device", "memory", "disk", "daemon", "port", "swarm"]
    assert (well.return_value, document["ok"], [each["check"] for each in document["checks"]]) == (0, True, checks)
    assert all(each.keys() == {"check", "level", "found", "advice"} for each in document["checks"])

    ill = CliRunner().invoke(doctor, [*where, "--memory-limit", "100MB"], standalone_mode=False)
    assert ill.return_value == 1
    assert "fail  memory     100.0 MB of --memory-limit" in ill.output
    assert "\n                 -> raise --memory-limit: a peer does not start\n" in ill.output
