"""`swarmflow simulate`, as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmflow.cli import main
from swarmflow.policies import POLICIES
from tests.simulation.samples import CHURN

ROOT = Path(__file__).parents[2]
SHORT, FOUR = (CHURN.replace("iterations = 8", f"iterations = {count}") for count in (1, 4))


def simulate(
    folder: Path, *arguments: str | Path, text: str = CHURN, hash_seed: str = "random"
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own: nothing that is left over from another run can help it."""
    (folder / "scenario.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "swarmflow", "simulate", folder / "scenario.toml", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)


def here(folder: Path, *arguments: str | Path, text: str = CHURN) -> int:
    """Run the command in this process, and return its exit code: a start of Python takes seconds."""
    (folder / "scenario.toml").write_text(text, encoding="utf-8")
    return main(["simulate", str(folder / "scenario.toml"), *map(str, arguments)])


def test_the_trace_and_the_figures_are_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    files = []
    for number in ("1", "2"):
        outputs = [tmp_path / f"{number}.trace", tmp_path / f"{number}.json"]
        files_of = ("--trace", outputs[0], "--json", outputs[1])
        done = simulate(tmp_path, "--seed", "5", *files_of, text=FOUR, hash_seed=number)
        assert done.returncode == 0, done.stderr
        files.append([path.read_bytes() for path in outputs])
    assert files[0] == files[1]
    trace, figures = files[0]
    assert trace.count(b"\n") > 1000
    assert b" dies\n" in trace
    rows = json.loads(figures)
    assert (rows["seed"], rows["policy"], rows["violations"]) == (5, "swarmflow", [])
    assert len([row for row in rows["iterations"] if row["measured"]]) == 4
    assert rows["in_all"]["seconds"]["mean"] > 0
    assert "violations: none; outcome: finished" in done.stdout
    assert "minutes a microbatch" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--policy", "best"), f"swarmflow: unknown policy 'best'; allowed: {', '.join(POLICIES)}\n"),
        (
            ("--policy", "gpip"),
            f"swarmflow: unknown policy 'gpip' (did you mean gpipe?); allowed: {', '.join(POLICIES)}\n",
        ),
        (("--plot", "a.gif"), "swarmflow: --plot a.gif: must end in .png or .svg or .pdf\n"),
        (("--trace", "/nowhere/a"), "swarmflow: cannot write /nowhere/a: No such file or directory\n"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert here(tmp_path, *arguments) == 2
    assert capsys.readouterr() == ("", complaint)


@pytest.mark.parametrize("option", ["--json", "--trace", "--plot"])
def test_a_file_that_holds_something_else_is_left_alone(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.png"
    file.write_text("years of work")
    complaint = f"swarmflow: {option} {file} is there and holds something else: move it away, or give another name\n"
    assert here(tmp_path, option, file) == 2
    assert capsys.readouterr() == ("", complaint)
    assert file.read_text() == "years of work"


def test_what_an_earlier_simulation_wrote_is_written_anew(tmp_path: Path) -> None:
    outputs = ("--json", tmp_path / "a.json", "--trace", tmp_path / "a.trace")
    for _ in range(2):
        assert here(tmp_path, *outputs, text=SHORT) == 0


def test_a_plot_is_an_image(tmp_path: Path) -> None:
    for _ in range(2):  # the second time over its own
        assert here(tmp_path, "--plot", tmp_path / "a.png", text=SHORT) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
