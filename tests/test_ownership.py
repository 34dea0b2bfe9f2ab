"""Nothing that swarmflow did not write is removed or overwritten: folders by their marker, files by their content."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmflow.errors import ForeignFileError
from swarmflow.ownership import (
    MARKER,
    Marker,
    check_file,
    check_replaceable,
    claim_folder,
    is_intact,
    is_object_with,
    names,
    remove_own,
    remove_replaceable,
    seal,
)
from swarmflow.runtime.operations.folders import state_folder
from swarmflow.runtime.transport.identity import load_identity

OWN = names(r"port", r"data-\d+")


def exported(folder: Path, run: str = "run", content: str = "version 4") -> Path:
    """A folder as an export leaves it."""
    (folder / "sub").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "sub" / "template").write_bytes(b"text")
    seal(folder, "export", run, content)
    return folder


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(ForeignFileError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_whole_export_of_the_run_may_be_replaced_and_is_removed_whole(tmp_path: Path) -> None:
    folder = exported(tmp_path / "final")
    check_replaceable(folder, "export", "run")
    assert is_intact(folder, "export", "run", "version 4")
    assert not is_intact(folder, "export", "run", "version 5")
    assert remove_replaceable(folder)
    assert not folder.exists()
    check_replaceable(folder, "export", "run")
    folder.mkdir()
    check_replaceable(folder, "export", "run")


def _changed(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"WEIGHTS")
    os.utime(folder / "model.safetensors", ns=(1, 1))


def _hidden(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("mine")


FOREIGN: dict[str, Callable[[Path], object]] = {
    "added": lambda folder: (folder / "notes").write_text("mine"),
    "added below": lambda folder: (folder / "sub" / "notes").write_text("mine"),
    "hidden": _hidden,
    "changed": _changed,
    "link to a folder": lambda folder: (folder / "link").symlink_to("/usr", target_is_directory=True),
    "dangling link": lambda folder: (folder / "link").symlink_to("nowhere"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_somebody_added_or_changed_is_refused_and_never_removed(what: str, tmp_path: Path) -> None:
    folder = exported(tmp_path / "final")
    FOREIGN[what](folder)
    before = everything(folder)
    assert "was added or changed" in refusal(lambda: check_replaceable(folder, "export", "run"))
    assert everything(folder) == before
    assert not is_intact(folder, "export", "run", "version 4")
    assert not remove_replaceable(folder), "what is left of it is not swarmflow's"
    left = [path for path in folder.rglob("*") if path.name != MARKER and (path.is_symlink() or path.is_file())]
    assert len(left) == 1


@pytest.mark.parametrize("marker", ["none", "garbage", "other kind", "other run"])
def test_a_folder_of_somebody_else_is_refused(marker: str, tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    if marker == "garbage":
        (folder / MARKER).write_text("{")
    elif marker == "other kind":
        Marker("state").write(folder)
    elif marker == "other run":
        seal(folder, "export", "other", "")
    words = "belongs to another run" if marker == "other run" else "that swarmflow did not write"
    assert words in refusal(lambda: check_replaceable(folder, "export", "run"))
    assert (folder / "thesis.tex").read_text() == "years of work"
    (tmp_path / "file").write_text("x")
    assert "is no folder" in refusal(lambda: check_replaceable(tmp_path / "file", "export", "run"))


def test_a_place_that_cannot_be_looked_at_is_said_to_be_one(tmp_path: Path) -> None:
    line = refusal(lambda: check_replaceable(tmp_path / ("a" * 256), "export", "run"))
    assert line.endswith("cannot be read: File name too long: choose another one")


def test_a_marker_that_came_with_a_download_reaches_no_other_file(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    folder = exported(tmp_path / "final")
    status = outside.stat()
    Marker("export", "run", "", {"../outside": (status.st_size, status.st_mtime_ns)}).write(folder)
    remove_replaceable(folder)
    assert outside.read_text() == "mine"


def has_a_port(folder: Path) -> bool:
    return (folder / "port").is_file() and (folder / "port").read_text() == "x"


def claim(folder: Path) -> None:
    claim_folder(folder, "state", OWN, has_a_port)


def test_a_state_folder_is_taken_when_it_is_empty_or_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "state"
    claim(folder)
    (folder / "anything").write_text("made later")
    claim(folder)
    older = tmp_path / "older"
    older.mkdir()
    for name in ("port", "data-3", "port.0a1b2c3d.tmp", "lost+found", f"{MARKER}.0a1b2c3d.tmp"):
        (older / name).write_text("x")
    claim(older)
    assert Marker.read(older) == Marker("state")
    mounted = tmp_path / "mounted"
    (mounted / "data-3" / "lost+found").mkdir(parents=True)
    (mounted / f"{MARKER}.0a1b2c3d.tmp").write_text("{")
    claim(mounted)
    assert Marker.read(mounted) == Marker("state"), "empty, but for where another disk is mounted"


@pytest.mark.parametrize("name", ["port", "data-3", "data-3/file", "port.0a1b2c3d.tmp"])
def test_names_that_others_may_use_too_make_no_folder_swarmflows(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    assert "and nothing in it says that it is swarmflow's: give another one" in refusal(lambda: claim(tmp_path))
    assert everything(tmp_path) == {name: b"mine"}


@pytest.mark.parametrize("name", ["data", "port.txt", ".ssh", "data-3.bak"])
def test_a_state_folder_with_something_else_in_it_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "port").write_text("x")
    (tmp_path / name).write_text("mine")
    assert f"holds {name}, which is not swarmflow's" in refusal(lambda: claim(tmp_path))
    assert not (tmp_path / MARKER).exists()
    seal(tmp_path, "export", "run", "")
    assert "is an export:" in refusal(lambda: claim(tmp_path))


def test_a_peers_folder_without_the_marker_is_taken_whatever_the_peer_keeps_there(tmp_path: Path) -> None:
    """As `cp -r old/* new/` leaves it."""
    load_identity(tmp_path / "identity.key")
    for name in ("left", "copies", "frozen"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    assert state_folder(tmp_path) == tmp_path
    assert Marker.read(tmp_path) == Marker("state")


def test_only_files_of_its_own_names_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "version-00000004"
    (folder / "data-9").mkdir(parents=True)
    for name in ("port", "data-1", "notes"):
        (folder / name).write_text("x")
    remove_own(folder, OWN)
    assert sorted(path.name for path in folder.iterdir()) == ["data-9", "notes"]
    (folder / "notes").unlink()
    (folder / "data-9").rmdir()
    remove_own(folder, OWN)
    assert not folder.exists()
    remove_own(folder, OWN)


def test_a_file_is_overwritten_only_where_it_holds_what_swarmflow_writes(tmp_path: Path) -> None:
    path, own = tmp_path / "out.json", is_object_with("runs")
    check_file(path, "--json", own)
    for content in ("", '{"runs": [], "more": 1}'):
        path.write_text(content)
        check_file(path, "--json", own)
    for content in ("{}", "[]", "notes", '{"runs": ['):
        path.write_text(content)
        assert re.search(
            r"--json .*out\.json is there and holds something else", refusal(lambda: check_file(path, "--json", own))
        )
    check_file(Path(os.devnull), "--json", own)
