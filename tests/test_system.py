"""What the operating system reports: compared with what Linux itself tells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmflow.cgroups import memory_left
from swarmflow.files import sync_to_disk
from swarmflow.system import available_memory_bytes, resident_bytes, usable_cores

MIB = 1 << 20
HOLDER = "import sys; held = bytearray(b'x') * (64 << 20); print(len(held), flush=True); sys.stdin.read()"


def test_the_memory_of_a_process_is_what_it_holds_and_none_once_it_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == 64 * MIB
        assert 64 * MIB < resident_bytes(process.pid) < 128 * MIB
        process.kill()
        process.wait()
        assert resident_bytes(process.pid) == 0
    assert resident_bytes() == pytest.approx(resident_bytes(os.getpid()), rel=0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_available_memory_is_what_linux_says_unless_a_container_has_less() -> None:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    available = min([1024 * int(lines["MemAvailable"].split()[0]), *memory_left()])
    assert available_memory_bytes() == pytest.approx(available, rel=0.1)


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    assert usable_cores() == os.cpu_count()


def test_macos_is_asked_to_empty_the_drives_own_cache_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[int] = []
    monkeypatch.setattr("fcntl.F_FULLFSYNC", 51, raising=False)
    with (tmp_path / "file").open("wb") as file:
        monkeypatch.setattr("fcntl.fcntl", lambda handle, command: asked.append(command))
        sync_to_disk(file.fileno())
        assert asked == [51]

        def refuse(handle: int, command: int) -> None:
            raise OSError(45, "Operation not supported")

        monkeypatch.setattr("fcntl.fcntl", refuse)
        sync_to_disk(file.fileno())  # the file system of a network: fsync does
