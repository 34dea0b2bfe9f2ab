"""The feeds of recordings and of logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swarmflow.errors import DataError
from swarmflow.page.recording import Recording
from tests.page.fake_run import FakeRun, record


async def recorded(feed: Recording) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await feed.recording())
    return found


@pytest.mark.asyncio
async def test_a_recording_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = record(FakeRun(peers=4, microbatches=4), 10)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(written), encoding="utf-8")
    feed = Recording.of_file(file)
    assert await recorded(feed) == json.loads(json.dumps(written))
    assert json.loads(await feed.run(0))["mode"] == "recording"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '"text"',
        "{}",
        '{"duration_s": 1, "frames": [], "events": []}',
        '{"duration_s": "long", "frames": [], "events": [], "steps": []}',
        '{"duration_s": 1, "frames": [{"t": 0}], "events": [], "steps": []}',
        '{"duration_s": 1, "frames": [], "events": [{"time": 2}, {"time": 1}], "steps": []}',
        '{"duration_s": -1, "frames": [], "events": [], "steps": []}',
        '{"duration_s": NaN, "frames": [], "events": [], "steps": []}',
        "[" * 100_000,
    ],
)
def test_what_is_no_recording_is_refused_in_one_line(tmp_path: Path, content: str, without_collection: None) -> None:
    file = tmp_path / "run.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"run\.json is no recording") as error:
        Recording.of_file(file)
    assert "\n" not in str(error.value)


def line(step: int, time: float, loss: float = 2.0) -> str:
    return json.dumps({"step": step, "time": time, "loss": loss, "seconds": 2.0, "tokens": 10})


@pytest.mark.asyncio
async def test_a_log_gives_its_steps_with_times_from_its_start(tmp_path: Path) -> None:
    """Steps that a roll-back has undone are left out, and a last line that a crash cut off."""
    file = tmp_path / "steps.json"
    lines = [line(0, 102.0), line(1, 104.0), line(2, 106.0), line(1, 110.0, 1.5)]
    file.write_text("\n".join(lines) + '\n{"step": 2, "ti', encoding="utf-8")
    found = await recorded(Recording.of_steps(file))
    assert [(step["step"], step["time"], step["loss"]) for step in found["steps"]] == [(0, 2.0, 2.0), (1, 10.0, 1.5)]
    assert (found["duration_s"], found["frames"], found["events"]) == (10.0, [], [])


@pytest.mark.parametrize(
    "content", ["", "\n", "hello\n", '{"step": 1}\n', "[]\n", f"{line(0, 1.0)}\nnull\n{line(1, 2.0)}\n"]
)
def test_what_is_no_log_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "steps.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"steps\.json") as error:
        Recording.of_steps(file)
    assert "\n" not in str(error.value)


def test_a_file_that_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        Recording.of_file(tmp_path / "none.json")
