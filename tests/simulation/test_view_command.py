"""`swarmflow simulate --view`, as a person runs it: a page of the run, and the same as a file."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from swarmflow.cli import main
from tests.simulation.samples import PIPELINE

ROOT = Path(__file__).parents[2]
DEADLINE_S = 100.0


def command(folder: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    (folder / "scenario.toml").write_text(PIPELINE, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-m", "swarmflow", *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT)},
    )


def served(process: subprocess.Popen[str]) -> tuple[dict[str, Any], bytes]:
    """What the page of a command gets: of the run, and the recording. Ends the command."""
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        url = next(found[1] for line in lines if (found := re.match(r"page: (http://127\.0\.0\.1:\d+/) ", line)))
        answers = []
        for path in ("run?after=0", "recording"):
            with urllib.request.urlopen(f"{url}api/{path}", timeout=DEADLINE_S) as answer:
                answers.append(answer.read())
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.communicate()
    return json.loads(answers[0]), answers[1]


def test_the_page_and_the_file_have_the_run_and_the_dashboard_shows_the_file(tmp_path: Path) -> None:
    run, recording = served(command(tmp_path, "simulate", "scenario.toml", "--view", "--view-file", "view.json"))
    assert run == {"mode": "recording", "view": None, "events": [], "error": None}
    assert recording == (tmp_path / "view.json").read_bytes()
    found = json.loads(recording)
    assert [step["step"] for step in found["steps"]] == [0, 1, 2, 3]
    assert found["frames"][-1]["view"]["phase"] == "finished"
    assert served(command(tmp_path, "dashboard", "--recording", "view.json")) == (run, recording)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--view-file", "a.json", "--policy", "gpipe"), "the policy gpipe has no view: only swarmflow's own machines"),
        (("--view-file", "scenario.toml"), "--view-file scenario.toml is there and holds something else"),
        (("--view", "PORT"), "cannot serve the page on 127.0.0.1:PORT: Address already in use"),
    ],
)
def test_what_cannot_be_shown_is_one_line_before_anything_is_simulated(
    tmp_path: Path,
    arguments: tuple[str, ...],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scenario.toml").write_text(PIPELINE, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = [argument.replace("PORT", port) for argument in arguments]
        assert main(["simulate", "scenario.toml", *given]) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"swarmflow: {complaint.replace('PORT', port)}")
    assert err.count("\n") == 1
