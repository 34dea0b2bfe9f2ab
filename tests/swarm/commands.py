"""The real command line for the tests: run to its end, with a look at how it fails, or beside the test."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.load_aware import load_factor
from swarmflow.local.swarm import LocalProcess

DEADLINE_S = 60.0
_LOG_LINE = re.compile(r"\d\d:\d\d:\d\d .*")
_OTHER_VERSION = """
import sys, swarmflow
swarmflow.__version__ = "0.0.1"
from swarmflow.cli import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Ended:
    """A command that has ended. cpu_s: what it and its children computed."""

    code: int
    out: str
    err: str
    cpu_s: float

    @property
    def complaint(self) -> str:
        """What it complained of: exactly one line, after log lines at most, and a code that says that it failed."""
        assert self.code not in (0, 70), (self.code, self.err)
        lines = [line for line in self.err.splitlines() if not _LOG_LINE.fullmatch(line)]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("swarmflow: "), self.err
        return lines[0].removeprefix("swarmflow: ")


def swarmflow(
    *arguments: str | Path,
    other_version: bool = False,
    environment: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> Ended:
    """Runs `swarmflow` to its end. other_version: as a software of another version. before: run in the new process."""
    program = ["-c", _OTHER_VERSION] if other_version else ["-m", "swarmflow"]
    return ended([sys.executable, *program, *map(str, arguments)], environment, before)


def ended(
    command: Sequence[str], environment: Mapping[str, str] | None = None, before: Callable[[], None] | None = None
) -> Ended:
    """Runs a command to its end. before: run in the new process."""
    inherited = {key: value for key, value in os.environ.items() if key != "SWARMFLOW_JOIN"}
    began = os.times()
    done = subprocess.run(
        command,
        env={**inherited, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S * load_factor(),
        preexec_fn=before,
    )
    now = os.times()
    cpu_s = now.children_user + now.children_system - began.children_user - began.children_system
    return Ended(done.returncode, done.stdout, done.stderr, cpu_s)


def forked(forks: ForkServer, folder: Path, *arguments: str | Path) -> Ended:
    """The same, of a command that would take seconds to load torch before it complains. cpu_s: not known."""
    out, err = folder / "out.log", folder / "err.log"
    environment = {key: value for key, value in os.environ.items() if key != "SWARMFLOW_JOIN"}
    code = forks.start([str(argument) for argument in arguments], out, environment, err).wait(DEADLINE_S)
    return Ended(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"), math.nan)


@contextmanager
def started(log: Path, *arguments: str) -> Iterator[LocalProcess]:
    """A `swarmflow` process beside the test, killed at the end of the block with all that it started."""
    inherited = {key: value for key, value in os.environ.items() if key != "SWARMFLOW_JOIN"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "swarmflow", *arguments],
            env=inherited,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield LocalProcess(arguments[0], log, process)
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
