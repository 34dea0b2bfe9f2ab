"""A swarm of real processes on this machine: starts them, watches their output, and ends all of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from swarmflow.errors import SwarmflowError
from swarmflow.local.forkserver import ForkedProcess, ForkServer
from swarmflow.local.load_aware import LoadAwareTimeout, load_factor
from swarmflow.runtime.transport.invite import Invite

POLL_S = 0.05
STOP_S = 5.0
COMMAND_S = 60.0
# No other machine can reach a local swarm.
LISTEN = ("--listen", "127.0.0.1:0")
TAIL_LINES = 20

T = TypeVar("T")
RunSettings = Mapping[str, Mapping[str, object]]


class LocalSwarmError(SwarmflowError):
    """A process of a local swarm failed, or an awaited event was late; its notes hold the ends of the logs."""

    def __init__(self, line: str, processes: Sequence[LocalProcess] = ()) -> None:
        super().__init__(line)
        for process in processes:
            self.add_note(process.tail())


@dataclass
class LocalProcess:
    """One life of a trainer or peer, in a session of its own (Ctrl-C reaches only its parent)."""

    name: str
    log: Path  # file with all its output
    process: subprocess.Popen[bytes] | ForkedProcess
    expendable: bool = False  # killed or stopped on purpose, so that its exit code is no failure of the swarm
    arguments: tuple[str, ...] = ()  # of its `swarmflow` command
    life: int = 1  # number of its starts

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, -N where signal N ended it; None while it runs."""
        return self.process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send this process a signal, unless it has ended."""
        self.expendable = True
        self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, as by a power cut. The process is gone when this returns."""
        self.send(signal.SIGKILL)
        self.process.wait(STOP_S * load_factor())

    def tail(self) -> str:
        """Return the last lines of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {self.name} | {line}" for line in lines[-TAIL_LINES:]) or f"  {self.name} | (no output)"


def kill_at_once(processes: Iterable[LocalProcess]) -> None:
    """Send SIGKILL to all of them, as by one power cut: none does anything between the first death and the last.

    All are stopped before the first is killed. Survivors notice a death at once, but a stopped process only after a
    timeout; without the stop, a candidate could be elected by victims that are not killed yet, and lead although the
    kill takes its majority away.
    """
    victims = list(processes)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims:
            victim.send(number)
    for victim in victims:
        victim.kill()


class LocalSwarm:
    """Runs `swarmflow` processes until the `with` block ends, then stops every one of them.

    All files lie under `folder`: RUN.toml, a log and a state folder per process, a JSON file per trainer. Each process
    computes with `threads` threads. Every wait has a timeout, in seconds of an idle machine (local/load_aware.py), and
    fails with the ends of the logs.
    """

    def __init__(
        self,
        folder: Path,
        settings: RunSettings,
        *,
        threads: int = 1,
        forks: ForkServer | None = None,
        within: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """settings: RUN.toml, a mapping per section; relative paths in it are relative to `folder`.

        forks: starts the processes; its own environment then sets the number of threads. within: a command to run the
        command of a process with (`ip netns exec ...`), by the name of the process; ignored with `forks`.
        """
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run_file = self.folder / "RUN.toml"
        self.run_file.write_text(toml_text(settings), encoding="utf-8")
        output = settings.get("run", {}).get("output", "out")
        self.output = self.folder / str(output)
        self.processes: list[LocalProcess] = []
        self._threads = threads
        self._forks = forks
        self._within = within or {}
        self._invite: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def trainers(self) -> list[LocalProcess]:
        return [process for process in self.processes if process.name.startswith("trainer")]

    @property
    def peers(self) -> list[LocalProcess]:
        return [process for process in self.processes if process.name.startswith("peer")]

    def start_trainer(self, *options: str, beside: bool = False, timeout_s: float = 60.0) -> LocalProcess:
        """Start the next trainer. The first creates the run: return once its invite is written.

        beside: start it without an invite. It finds the run in the output folder, and so may lead it when no other
        trainer does. Return once its own invite is written, which peers that are started later get too.
        """
        name = f"trainer-{len(self.trainers)}"
        writes_invite = beside or self._invite is None
        invite_file = self.folder / ("invite" if self._invite is None else f"{name}.invite")
        where = ["--invite-file", str(invite_file)] if writes_invite else ["--join", self.invite]
        files = ["--json", str(self.json_file(name)), "--state-dir", str(self.state_folder(name))]
        trainer = self._start(name, "trainer", str(self.run_file), *where, *files, *LISTEN, *options)
        if writes_invite:
            invite = self.wait(lambda: _text(invite_file).strip(), f"the invite of {name}", timeout_s)
            self._invite = invite if self._invite is None else _merged(self._invite, invite)
        return trainer

    def start_peer(self, *options: str, stage: int | str = "auto") -> LocalProcess:
        """Start the next peer and return at once."""
        name = f"peer-{len(self.peers)}"
        what = ["--join", self.invite, "--stage", str(stage), "--state-dir", str(self.state_folder(name))]
        return self._start(name, "peer", *what, *LISTEN, *options)

    def start_other(self, name: str, *arguments: str) -> LocalProcess:
        """Start a process that is neither a trainer nor a peer, and return at once."""
        return self._start(name, *arguments)

    def start_again(self, process: LocalProcess) -> LocalProcess:
        """Restart a process that has ended, with the same command and a new log."""
        if process.exit_code is None:
            raise LocalSwarmError(f"{process.name} is still running; end it before it is started again")
        return self._start(process.name, *process.arguments, before=process)

    @property
    def invite(self) -> str:
        """Return the invite for peers. Raises LocalSwarmError before the first trainer runs."""
        if self._invite is None:
            raise LocalSwarmError("the swarm has no trainer yet; start one first")
        return self._invite

    def state_folder(self, name: str) -> Path:
        """Return the folder in which a process keeps its identity, and a trainer its checkpoints."""
        return self.folder / name

    def json_file(self, trainer: str = "trainer-0") -> Path:
        return self.folder / f"{trainer}.jsonl"

    def steps(self, trainer: str = "trainer-0") -> list[dict[str, Any]]:
        """Return the committed steps in order, as a trainer reports them; after a roll-back the last line counts."""
        by_step: dict[int, dict[str, Any]] = {}
        for line in _text(self.json_file(trainer)).splitlines(keepends=True):
            if line.endswith("\n"):
                step = json.loads(line)
                by_step[step["step"]] = step
        return [by_step[step] for step in sorted(by_step)]

    def status(self) -> dict[str, Any]:
        """Return the output of `swarmflow status --json`."""
        answer = json.loads(self.command("status", "--join", self.invite, "--json"))
        if not isinstance(answer, dict):
            raise LocalSwarmError(f"status gave no JSON object: {answer!r}")
        return answer

    def command(self, *arguments: str) -> str:
        """Run a `swarmflow` command to its end and return its output. Raises LocalSwarmError if it fails."""
        output, errors = self.folder / f"{arguments[0]}.log", self.folder / f"{arguments[0]}.err"
        try:
            if self._forks is not None:
                forked = self._forks.start(arguments, output, errors=errors)
                try:
                    code = forked.wait(COMMAND_S)
                finally:
                    forked.send_signal(signal.SIGKILL)
            else:
                with output.open("wb") as out, errors.open("wb") as err:
                    code = subprocess.run(
                        _command(arguments),
                        env=environment(self._threads),
                        stdout=out,
                        stderr=err,
                        timeout=COMMAND_S * load_factor(),
                    ).returncode
        except subprocess.TimeoutExpired as error:
            raise LocalSwarmError(f"swarmflow {arguments[0]} took more than {error.timeout:.0f} s") from error
        if code:
            raise LocalSwarmError(f"swarmflow {arguments[0]} ended with {code}: {_text(errors).strip()}")
        return _text(output)

    def wait(self, ready: Callable[[], T | None], what: str, timeout_s: float) -> T:
        """Return the first true value of `ready`. Raises LocalSwarmError when it is late or when a process fails."""
        timeout = LoadAwareTimeout(timeout_s)
        while True:
            self.check()
            if value := ready():
                return value
            if timeout.expired():
                raise LocalSwarmError(f"waited {timeout_s:.0f} s in vain for {what}", self.processes)
            time.sleep(POLL_S)

    def wait_steps(self, count: int, timeout_s: float) -> list[dict[str, Any]]:
        """Wait until `count` steps are committed, and return them."""

        def enough() -> list[dict[str, Any]] | None:
            steps = self.steps()
            return steps if len(steps) >= count else None

        return self.wait(enough, f"{count} steps", timeout_s)

    def wait_finished(self, timeout_s: float) -> None:
        """Wait until every process has ended by itself with the exit code 0."""
        self.wait(lambda: all(p.exit_code is not None for p in self.processes), "the end of the run", timeout_s)

    def check(self) -> None:
        """Raise LocalSwarmError, with the end of its log, for a process that has failed."""
        for process in self.processes:
            if process.exit_code and not process.expendable:
                raise LocalSwarmError(f"{process.name} ended with exit code {process.exit_code}", [process])

    def stop(self) -> None:
        """Stop all running processes: SIGKILL to whole sessions, so that none remains, whatever its state."""
        for process in self.processes:
            # A process that still runs has not been reaped, so no other session can have its number.
            if process.exit_code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.process.wait(STOP_S * load_factor())

    def _start(self, name: str, *arguments: str, before: LocalProcess | None = None) -> LocalProcess:
        """Start a process and list it. before: its former life, which it replaces in the list."""
        life = 1 if before is None else before.life + 1
        log = self.folder / (f"{name}.log" if life == 1 else f"{name}.life-{life}.log")
        process = self._spawn(self._within.get(name, ()), arguments, log)
        started = LocalProcess(name, log, process, arguments=arguments, life=life)
        if before is None:
            self.processes.append(started)
        else:
            self.processes[self.processes.index(before)] = started
        return started

    def _spawn(
        self, within: Sequence[str], arguments: Sequence[str], log: Path
    ) -> subprocess.Popen[bytes] | ForkedProcess:
        own = environment(self._threads)
        if self._forks is not None:
            return self._forks.start(arguments, log, own)
        with log.open("wb") as output:
            return subprocess.Popen(
                [*within, *_command(arguments)],
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a process with `threads` threads, without the invite of another run."""
    inherited = {key: value for key, value in os.environ.items() if key != "SWARMFLOW_JOIN"}
    return {**inherited, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, so that the processes that it started are stopped too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _merged(one: str, other: str) -> str:
    """Return an invite with the trainers of both."""
    first, second = Invite.parse(one), Invite.parse(other)
    return str(first.at(first.trainers + second.trainers))


def toml_text(settings: RunSettings) -> str:
    """Return RUN.toml with these sections. Values are strings, booleans, numbers, lists of these, and tables."""
    lines: list[str] = []
    for section, values in settings.items():
        lines += [f"[{section}]", *(f"{key} = {_toml_value(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _toml_value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    # JSON writes a string, a boolean and a number as TOML does.
    return json.dumps(str(value) if isinstance(value, Path) else value)


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "swarmflow", *arguments]


def _text(path: Path) -> str:
    """Return the text of a file; empty as long as there is no file."""
    return path.read_text(encoding="utf-8") if path.exists() else ""
