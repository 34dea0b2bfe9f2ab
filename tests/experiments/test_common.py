"""What all experiments write and print."""

from __future__ import annotations

import io
import json
from pathlib import Path

import click
import pytest
from rich.console import Console

from experiments.common.arguments import options, plot_file, run
from experiments.common.plot import bars
from experiments.common.rows import Row, row, write_json
from experiments.common.table import table
from swarmflow.errors import ConfigError

ROWS = [
    row("Homogeneous 0%", "swarm", "Seconds", [1.0, 2.0, 3.0], 0.53),
    row("Homogeneous 0%", "swarmflow", "Seconds", [1.5]),
]


def test_a_row_is_a_mean_and_a_sample_standard_deviation() -> None:
    assert ROWS[0] == Row("Homogeneous 0%", "swarm", "Seconds", 2.0, 1.0, 3, 0.53)
    assert ROWS[1] == Row("Homogeneous 0%", "swarmflow", "Seconds", 1.5, 0.0, 1, None)


def test_the_file_is_a_list_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    write_json(path, ROWS)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [list(each) for each in found] == [["setting", "policy", "metric", "mean", "std", "n", "paper"]] * 2
    assert (found[0]["paper"], found[1]["paper"]) == (0.53, None)
    with pytest.raises(ConfigError, match="cannot write"):
        write_json(tmp_path / "no" / "rows.json", ROWS)


def test_the_table_has_a_column_a_policy() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table("A title", ROWS))
    text = console.export_text()
    assert "2 ± 1 (0.53)" in text
    assert "1.5" in text
    assert text.index("swarm") < text.index("swarmflow")


def test_the_plot_is_an_image(tmp_path: Path) -> None:
    bars(tmp_path / "plot.png", "A title", ROWS, ["Seconds"])
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="cannot write"):
        bars(tmp_path / "no" / "plot.png", "A title", ROWS, ["Seconds"])


def test_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @click.command("trial")
    @options
    def trial(quick: bool, seed: int, json_file: Path | None) -> None:
        if seed == 7:
            raise ConfigError("no such thing")
        click.echo(f"{quick} {seed} {json_file}")

    monkeypatch.setattr("sys.argv", ["trial", "--quick", "--seed", "3", "--json", "a.json"])
    with pytest.raises(SystemExit) as ended:
        run(trial)
    assert (ended.value.code, capsys.readouterr().out) == (0, "True 3 a.json\n")
    monkeypatch.setattr("sys.argv", ["trial", "--seed", "7"])
    with pytest.raises(SystemExit) as ended:
        run(trial)
    assert (ended.value.code, capsys.readouterr().err) == (2, "trial: no such thing\n")


def test_a_quick_plot_replaces_no_real_one() -> None:
    assert plot_file("/a/__main__.py", quick=False) == Path("/a/plot.png")
    assert plot_file("/a/__main__.py", quick=True) == Path("/a/quick.png")
