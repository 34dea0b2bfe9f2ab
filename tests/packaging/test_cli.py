"""The command line's last line of defence: every error is one line and an exit code."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from peers.command import NUMBER_MAX
from swarmflow import cli
from swarmflow.core.protocol.messages import Join
from swarmflow.core.protocol.messages.checks import checks_of
from swarmflow.core.protocol.types import Member, Plan, ProcessId
from swarmflow.errors import ConfigError, NetworkError

Raiser = Callable[[BaseException], None]


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Raiser:
    """Add a command `fail` that raises what the test gives it."""
    monkeypatch.delenv(cli.DEBUG_VARIABLE, raising=False)

    def add(error: BaseException) -> None:
        def fail() -> None:
            raise error

        monkeypatch.setitem(cli.cli.commands, "fail", click.Command("fail", callback=fail))

    return add


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (NetworkError("no peer\nanswers"), 1, "swarmflow: no peer answers\n"),
        (ConfigError("train.steps = -1: at least 1"), 2, "swarmflow: train.steps = -1: at least 1\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_users_error_is_one_line(
    raising: Raiser, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    raising(error)
    assert cli.main(["fail"]) == code
    assert capsys.readouterr().err.lstrip("\n") == line


def test_a_mistake_of_ours_is_one_line_and_keeps_the_traceback(
    raising: Raiser, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    raising(RuntimeError("what now"))
    assert cli.main(["fail"]) == cli.EXIT_UNEXPECTED
    shown = capsys.readouterr().err
    found = re.fullmatch(r"swarmflow: RuntimeError: what now \(.*SWARMFLOW_DEBUG=1.* read (\S+)\)\n", shown)
    assert found is not None
    assert "Traceback" in Path(found[1]).read_text(encoding="utf-8")


def test_the_text_of_a_mistake_acts_on_no_terminal(raising: Raiser, capsys: pytest.CaptureFixture[str]) -> None:
    raising(RuntimeError("\x1b[2Jwhat\u202e"))
    assert cli.main(["fail"]) == cli.EXIT_UNEXPECTED
    assert r"RuntimeError: \x1b[2Jwhat\u202e (" in capsys.readouterr().err


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output_takes_what_is_written(closed: str) -> None:
    ended = subprocess.run(["sh", "-c", f'"$0" -m swarmflow --help {closed}', sys.executable], capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_what_an_encoding_lacks_is_written_as_codes() -> None:
    program = "from swarmflow import cli; cli.open_output(); print('loss ▇ é')"
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True
    )
    assert (ended.stdout, ended.stderr) == (b"loss \\u2587 \xe9\n", b"")


def test_debug_shows_the_traceback(
    raising: Raiser, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(RuntimeError("what now"))
    monkeypatch.setenv(cli.DEBUG_VARIABLE, "1")
    assert cli.main(["fail"]) == cli.EXIT_UNEXPECTED
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["pear"], "Error: No such command 'pear' (did you mean peer?).\n"),
        (["Trainer"], "Error: No such command 'Trainer' (did you mean trainer?).\n"),
        (["xyzzy"], "Error: No such command 'xyzzy'.\n"),
        (["trainer", "--jion", "x"], "Error: No such option '--jion'. (Did you mean one of: '--join', '--json'?)\n"),
        (
            ["chaos", "--codec", "non"],
            "Error: Invalid value for '--codec': 'non' is not one of 'none', 'blockwise8' (did you mean none?).\n",
        ),
        (
            ["peer", "--device", "cua"],
            "swarmflow: --device cua: allowed are auto, cpu, cuda:N and mps (did you mean cuda?)\n",
        ),
        (
            ["peer", "--stage", "aut"],
            "swarmflow: --stage aut: must be auto or the number of a stage, from 0 (did you mean auto?)\n",
        ),
    ],
)
def test_a_misspelt_command_option_or_value_is_a_usage_error_with_the_nearest_one(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.endswith(line)


@pytest.mark.parametrize(
    "arguments",
    [
        ["peer", "--rebalance-period", "inf"],
        ["peer", "--rebalance-period", "2e9"],
        ["peer", "--capacity", "10000000000"],
        ["peer", "--stage", "5000000000"],
        ["peer", "--stage", "9" * 5000],
        ["peer", "--drain-seconds", "nan"],
        ["health", "--stalled-max", "nan"],
    ],
)
def test_a_number_that_means_nothing_is_a_usage_error(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert cli.main(arguments) == 2
    assert arguments[1] in capsys.readouterr().err


def test_a_leader_believes_the_largest_numbers_of_a_peers_options() -> None:
    asked = Join("peer", "1", "run", Member(ProcessId("a", 1), NUMBER_MAX - 1, NUMBER_MAX), 1.0, NUMBER_MAX)
    assert checks_of(Plan(2, 4)).wrong(asked) is None


def test_a_commands_integer_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.cli.commands, "fail", click.Command("fail", callback=lambda: 3))
    assert cli.main(["fail"]) == 3


def test_a_process_may_open_as_many_files_as_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        cli.raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
