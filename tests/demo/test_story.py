"""Where the demonstration puts its model."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmflow.demo.story import checked_place, keep
from swarmflow.errors import ConfigError, SwarmflowError


@pytest.fixture
def final(tmp_path: Path) -> Path:
    """A trained model."""
    folder = tmp_path / "trained" / "final"
    folder.mkdir(parents=True)
    (folder / "model").touch()
    return folder


@pytest.mark.parametrize(
    ("out", "kept"),
    [("new", "here/new"), ("a/b", "here/a/b"), ("taken", "here/taken-2"), (".", "here-2"), ("x/..", "here-2")],
)
def test_a_model_is_kept_where_it_is_wanted_or_beside_what_is_there(
    out: str, kept: str, final: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "taken").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert keep(final, checked_place(Path(out))) == tmp_path / kept
    assert (tmp_path / kept / "model").exists()


@pytest.mark.parametrize("out", ["/", "file/x", "file/x/y", "/proc/none/x"])
def test_a_place_that_takes_no_model_is_told_before_the_training(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"--out {out}: "):
        checked_place(Path(out))


def test_a_model_that_cannot_be_moved_is_said_to_be_where_it_was(final: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SwarmflowError, match=f"it is in {final}"):
        keep(final, tmp_path / "file" / "model")
    assert (final / "model").exists()
