"""What is done to processes from outside: a flipped byte, a disk that is full for one of them, files that say what."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from swarmflow.chaos.sabotage import FULL_BYTES, block, damage, fill, resume, stall, unblock

WRITE = """
import sys
for line in sys.stdin:
    try:
        with open(sys.argv[1], "wb") as file:
            file.write(bytes(int(line)))
        print("written", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


def test_one_byte_of_the_newest_file_of_a_stage_is_flipped(tmp_path: Path) -> None:
    contents = {}
    for number, name in enumerate(("version-00000002/stage-0.safetensors", "version-00000004/stage-1.safetensors")):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_bytes(bytes(range(100)))
        os.utime(path, (number, number))
        contents[path] = path.read_bytes()
    damaged = damage(tmp_path, 0.5)
    assert damaged == path
    assert [was for was, now in zip(contents[path], path.read_bytes(), strict=True) if was != now] == [49]
    assert all(other.read_bytes() == was for other, was in contents.items() if other != path)


def test_a_folder_without_states_has_nothing_to_damage(tmp_path: Path) -> None:
    (tmp_path / "identity.key").write_text("secret")
    assert damage(tmp_path, 0.0) is None


def test_a_full_disk_refuses_what_is_as_large_as_a_stage_until_it_is_not_full_any_more(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE, str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def wrote(size_bytes: int) -> bool:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{size_bytes}\n")
            process.stdin.flush()
            return process.stdout.readline() == "written\n"

        assert wrote(2 * FULL_BYTES)
        fill(process.pid, full=True)
        assert not wrote(2 * FULL_BYTES)
        assert wrote(FULL_BYTES // 2)
        fill(process.pid, full=False)
        assert wrote(2 * FULL_BYTES)
        process.stdin.close()


def test_what_is_done_can_be_undone_and_undone_again(tmp_path: Path) -> None:
    block(tmp_path, ["one", "two"])
    stall(tmp_path)
    assert (tmp_path / "blocked").read_text().split() == ["one", "two"]
    assert len(list(tmp_path.iterdir())) == 2
    for _ in range(2):
        unblock(tmp_path)
        resume(tmp_path)
        assert list(tmp_path.iterdir()) == []
