"""The picture of a run: a PNG that holds what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swarmflow.demo.picture import DPI, INCHES, VERMILION, Mark, draw, smooth
from swarmflow.errors import SwarmflowError

PNG = b"\x89PNG\r\n\x1a\n"
BEGAN_S = 1.7e9


def steps(count: int = 30) -> list[dict[str, Any]]:
    return [
        {"step": n, "loss": 7.0 - n / 10, "tokens": 4096, "seconds": 1.0, "peers": [2, 1 if 9 < n < 15 else 2, 2]}
        | {"time": BEGAN_S + n, "microbatches": 8}
        for n in range(count)
    ]


def pixels_like(path: Path, colour: str) -> int:
    """Return how many pixels of a PNG have a colour, about."""
    from matplotlib import image

    wanted = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    picture = image.imread(path)[:, :, :3]
    return int((np.abs(picture - wanted).max(axis=2) < 0.02).sum())


def test_the_picture_is_a_png_of_its_size_in_which_the_kill_stands_out(tmp_path: Path) -> None:
    killed = Mark(BEGAN_S + 9.5, "killed", "SIGKILL to peer-1")
    marks = [killed, Mark(BEGAN_S + 10.2, "repaired", "again"), Mark(BEGAN_S + 15, "joined", "peer-6 joins stage 1")]
    draw(steps(), marks, "A title", tmp_path / "run.png")
    draw(steps(), [], "A title", tmp_path / "calm.png")
    data = (tmp_path / "run.png").read_bytes()
    assert data.startswith(PNG)
    size = (int.from_bytes(data[16:20]), int.from_bytes(data[20:24]))
    assert size == tuple(round(inches * DPI) for inches in INCHES)
    assert 20_000 < len(data) < 1_000_000
    assert pixels_like(tmp_path / "calm.png", VERMILION) == 0
    assert pixels_like(tmp_path / "run.png", VERMILION) > 1000


def test_a_loss_that_is_no_number_and_a_run_of_one_step_are_drawn(tmp_path: Path) -> None:
    draw([{**step, "loss": None} for step in steps(3)], [], "A title", tmp_path / "none.png")
    draw(steps(1), [], "A title", tmp_path / "one.png")
    assert (tmp_path / "none.png").read_bytes().startswith(PNG)
    assert (tmp_path / "one.png").read_bytes().startswith(PNG)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SwarmflowError, match=r"the picture cannot be written to .*: No such file"):
        draw(steps(3), [], "A title", tmp_path / "nowhere" / "run.png")


def test_smoothing_keeps_the_number_of_values_and_a_straight_line() -> None:
    assert smooth([1.0, 2.0, 6.0], width=3) == [1.5, 3.0, 4.0]
    assert smooth([4.0] * 20) == [4.0] * 20
