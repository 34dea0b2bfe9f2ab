"""Starts `swarmflow` processes at once, not in seconds, by forking a server that has imported the libraries already.

Each process has a session of its own and reads the same command line as one that is not forked. Without the server, a
swarm whose processes are started again and again would spend the machine's time on importing torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from swarmflow.errors import SwarmflowError
from swarmflow.local.load_aware import LoadAwareTimeout, load_factor
from swarmflow.runtime.execution.heap import heap_environment

# Of macOS's frameworks many, those of torch among them, do not work in a process that was forked and starts no program.
CAN_FORK = sys.platform == "linux"
_READY_S = 120.0
_ANSWER_S = 20.0
_POLL_S = 0.02
# Modules are imported by name, because this package may depend neither on the roles nor on how they compute.
_COMMANDS = ("swarmflow.cli", "peers.command", "peers.process", "trainers.command", "trainers.process")
_ADDRESS_CODECS = tuple(f"hivemind.utils.multiaddr.codecs.{codec}" for codec in ("ip4", "uint16be", "cid"))
_CODEC_MODULE = "swarmflow.compute.codec"
_FAMILIES_MODULE = "swarmflow.compute.families"
_FAMILIES = ("gpt2", "llama")  # model families of the demo and of the tests; a process loads any other itself
# Whether there is a CUDA device torch finds out from its driver's library then. Else it starts CUDA, which no forked
# process can use from then on.
_ASK_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_ENDED = "the fork server has ended, and with it all of its processes"


class ForkServerError(SwarmflowError):
    """The server does not start or has ended."""


class ForkedProcess:
    """A process that the server has forked, with the interface of a subprocess.Popen."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server

    def poll(self) -> int | None:
        """Return the exit code, -N where signal N ended the process; None while it runs."""
        return self._server.exit_code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process ends, and return its exit code. Raises subprocess.TimeoutExpired."""
        deadline = LoadAwareTimeout(timeout if timeout is not None else float("inf"))
        while (code := self.poll()) is None:
            if deadline.expired():
                raise subprocess.TimeoutExpired("swarmflow", timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended. The server does not reap it, so that no other process gets its ID."""
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """Forks processes inside its `with` block; those left are killed at its end, or when its owner dies.

    Several threads may use it.
    """

    def __init__(self, environment: Mapping[str, str], module: str = __name__) -> None:
        """environment: of the server; what libraries read at import, as the number of threads, holds in every child.

        module: run by the server; it must end by calling `main`.
        """
        # The heap is set for the server, because a forked process cannot change it.
        self._environment = {**heap_environment(), **environment}
        self._module = module
        self._exit_codes: dict[int, int] = {}  # by process ID
        self._partial_line = b""  # read from the server without its end
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        if not CAN_FORK:
            raise ForkServerError("this needs Linux: elsewhere a process that has loaded torch cannot be forked")
        self._server = subprocess.Popen(
            [sys.executable, "-m", self._module],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._answer(_READY_S * load_factor())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(_ANSWER_S * load_factor())
        self._server.stdout.close()

    def start(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        errors: Path | None = None,
        folder: Path | None = None,
    ) -> ForkedProcess:
        """Run `swarmflow ARGUMENTS` and write its output to `log`. Raises ForkServerError; OSError for its logs.

        environment: its own; None: the server's. errors: the file for its stderr; None: `log` too. Both files exist
        when this returns. folder: its working directory; None: the server's.
        """
        assert self._server.stdin is not None
        own = None if environment is None else dict(environment)
        errors = errors or log
        for file in (log, errors):
            file.write_bytes(b"")  # the child opens them some time after it has reported its process ID
        request = [own, str(log), str(errors), str(folder or ""), *arguments]
        with self._lock:
            self._server.stdin.write(json.dumps(request).encode() + b"\n")
            self._server.stdin.flush()
            return ForkedProcess(self, self._answer(_ANSWER_S * load_factor()))

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a forked process; None while it runs. Raises ForkServerError: the server is gone."""
        with self._lock:
            if pid not in self._exit_codes:
                for answer in self._answers(0.0):
                    raise ForkServerError(f"the fork server sent an unexpected answer: {answer}")
            return self._exit_codes.get(pid)

    def _answer(self, timeout_s: float) -> int:
        """Return the next answer of the server. Raises ForkServerError."""
        for answer in self._answers(timeout_s):
            return answer
        raise ForkServerError(f"the fork server has not answered within {timeout_s:.0f} s")

    def _answers(self, timeout_s: float) -> Iterator[int]:
        """Yield the answers that arrive within the timeout; record the exit codes that arrive with them."""
        assert self._server.stdout is not None
        if self._server.stdout.closed:
            raise ForkServerError(_ENDED)
        deadline_s = time.monotonic() + timeout_s
        descriptor = self._server.stdout.fileno()
        while select.select([descriptor], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            data = os.read(descriptor, 65536)
            if not data:
                raise ForkServerError(_ENDED)
            *lines, self._partial_line = (self._partial_line + data).split(b"\n")
            answers = []
            for line in lines:
                reply = json.loads(line)
                if isinstance(reply, list):
                    self._exit_codes[reply[0]] = reply[1]
                else:
                    answers.append(reply)
            yield from answers


# --- the server -------------------------------------------------------------------------------------------------------


def _serve() -> None:
    """Fork for each line that is read, and report each child that has ended. This also returns in each child."""
    _load()
    _report(0)
    server = os.getpid()
    children: set[int] = set()
    text = b""
    while True:
        readable, _, _ = select.select([0], [], [], _POLL_S)
        if readable:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, text = (text + data).split(b"\n")
            for line in lines:
                environment, log, errors, folder, *arguments = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    _end_with(server)
                    _set_up_child(log, errors, arguments, environment)
                    if folder:
                        os.chdir(folder)
                    return
                children.add(pid)
        for pid in sorted(children):
            # A child that has ended is not reaped, so that no other process gets its process ID.
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                children.remove(pid)
                _report([pid, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status])
    for pid in sorted(children):
        os.kill(pid, signal.SIGKILL)  # a child that has just been forked has no session of its own yet
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os._exit(0)


def _load() -> None:
    """Import what takes seconds, once for all children; none of it may start a thread or CUDA before the fork."""
    os.environ[_ASK_NVML] = "1"
    for name in (*_COMMANDS, *_ADDRESS_CODECS):
        importlib.import_module(name)
    importlib.import_module(_CODEC_MODULE).preload()
    importlib.import_module(_FAMILIES_MODULE).preload(*_FAMILIES)
    del os.environ[_ASK_NVML]
    gc.collect()
    gc.freeze()  # else the first collection in each child writes to, and so copies, every page of the libraries


def _report(value: int | list[int]) -> None:
    """Write to the owner: an answer (0: ready; a process ID: started), or [process ID, exit code]."""
    os.write(1, json.dumps(value).encode() + b"\n")


def _end_with(server: int) -> None:
    """Have the system kill this child when the server ends, also where the server is killed and can kill nobody."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:  # it ended before that
        os._exit(1)


def _set_up_child(log: str, errors: str, arguments: list[str], environment: dict[str, str] | None) -> None:
    """Set up what a shell would for the command, in the child; report its process ID once it has a session."""
    if environment is not None:
        os.environ.clear()
        os.environ |= {**environment, **heap_environment()}  # for the processes that the child starts
    os.setsid()
    _report(os.getpid())
    with open(os.devnull, "rb") as nothing, open(log, "wb") as file:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if errors != log:
        with open(errors, "wb") as file:
            os.dup2(file.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.argv = ["swarmflow", *arguments]


def main(first: Callable[[], object] = lambda: None) -> NoReturn:
    """Serve; in each forked process, run its command. first: called there before."""
    _serve()
    first()

    from swarmflow import cli

    cli.run()


if __name__ == "__main__":
    main()
