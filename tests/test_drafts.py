"""Drafts of folders: what a killed process left of them goes, what it had moved comes back, a living one's stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swarmflow.drafts import DRAFT, UNTOUCHED_S, clear_up, draft_of, move_into_place
from swarmflow.ownership import Marker, seal
from tests.test_ownership import everything, exported

WRITING = """
import sys
from pathlib import Path
from swarmflow.drafts import draft_of
with draft_of(Path(sys.argv[1]), "run") as draft:
    (draft / "model.safetensors").write_bytes(b"half of the wei")
    print(draft, flush=True)
    sys.stdin.read()
"""


def test_a_draft_is_its_makers_while_it_lives_and_removed_when_it_was_killed(tmp_path: Path) -> None:
    out = tmp_path / "step-4"
    command = [sys.executable, "-c", WRITING, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        draft = Path(maker.stdout.readline().strip())
        for run in ("run", "other"):
            clear_up(tmp_path, "final|step-[0-9]+", run)
        assert (draft / "model.safetensors").is_file()
        maker.send_signal(signal.SIGKILL)
    for names, run in (("final", "run"), ("final|step-[0-9]+", "other")):
        clear_up(tmp_path, names, run)
        assert (draft / "model.safetensors").is_file(), "another folder's, another run's"
    clear_up(tmp_path, "final|step-[0-9]+", "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("age_s", [0.0, 2 * UNTOUCHED_S])
def test_a_draft_of_another_machine_is_nobodys_when_it_has_long_been_left(age_s: float, tmp_path: Path) -> None:
    draft, empty = tmp_path / ".final.0123abcd.part", tmp_path / ".final.0123abce.part"
    for folder in (draft, empty):
        folder.mkdir()
    (draft / "model.safetensors").write_bytes(b"half")
    Marker(DRAFT, "run", "another machine").write(draft)
    for path in (*draft.iterdir(), draft, empty):
        os.utime(path, (time.time() - age_s,) * 2)
    clear_up(tmp_path, "final", "run")
    assert (draft.exists(), empty.exists()) == ((True, True) if not age_s else (False, False))


def test_what_was_moved_is_put_back_where_nothing_took_its_place(tmp_path: Path) -> None:
    out, old = exported(tmp_path / "final"), tmp_path / ".final.0123abcd.old"
    whole = everything(out)
    out.rename(old)
    clear_up(tmp_path, "final", "other")
    assert not out.exists(), "it is another run's"
    clear_up(tmp_path, "final", "run")
    assert everything(out) == whole
    assert list(tmp_path.iterdir()) == [out]
    exported(old)
    (old / "notes").write_text("mine")
    clear_up(tmp_path, "final", "run")
    assert sorted(everything(tmp_path / ".final.0123abcd.old")) == [".swarmflow.json", "notes"]
    assert everything(out) == whole


def test_a_folder_that_others_made_is_not_taken_for_a_draft(tmp_path: Path) -> None:
    for name in (".final.0123abcd.part", ".final.0123abcd.old", ".final.part", "final.0123abcd.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("years of work")
        os.utime(tmp_path / name, (0, 0))
        os.utime(tmp_path / name / "mine", (0, 0))
    before = everything(tmp_path)
    with draft_of(tmp_path / "final", "run") as draft:
        seal(draft, "export", "run", "version 4")
        move_into_place(draft, tmp_path / "final", "export", "run")
    after = everything(tmp_path)
    assert {name: after[name] for name in before} == before
    assert sorted(set(after) - set(before)) == ["final/.swarmflow.json"]
