"""Carries out a guide of docs/guides: its commands, in order, against real processes in a fresh folder.

Comments of the page, which readers do not see, say what to expect of the block that follows: `<!-- guide: ... -->`.

- `background until "REGEX"`: the command goes on; its output has to match before the next block.
- `prints "REGEX"`: the output of the block matches. Without either, it has to end with exit code 0 too.
- `file NAME`: the block is the content of a file. `python`: it is a program.
- `not run: REASON`: the block needs what tests have not.
- between blocks: `prepare NAME`, `interrupt "COMMAND"`, `kill "COMMAND"` and `wait for "COMMAND" until "REGEX"` of a
  command in the background, by its beginning.

INVITE in a command is the invite of the run. A command of this machine alone listens on 127.0.0.1, and the ports of
the page are replaced by free ones.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from swarmflow.local.forkserver import ForkedProcess, ForkServer
from swarmflow.local.load_aware import LoadAwareTimeout
from swarmflow.local.swarm import environment

WAIT_S = 60.0
POLL_S = 0.05
_PIECE = re.compile(
    r"^<!-- guide: (?P<directive>.+?) -->$|^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_PORT = re.compile(r"\b(?:7400|94\d\d)\b")


@dataclass(frozen=True)
class Block:
    """A fenced block, and the directive before it; empty: none."""

    language: str
    body: str
    directive: str


@dataclass
class Started:
    """A command in the background."""

    command: str
    process: ForkedProcess
    log: Path

    def output(self) -> str:
        """Return what it has written so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


def pieces(page: str) -> Iterator[str | Block]:
    """Yield the directives that stand alone, and the blocks with theirs, in order."""
    pending = ""
    for found in _PIECE.finditer(page):
        if found["directive"] is not None:
            if found["directive"].startswith(("prepare ", "interrupt ", "kill ", "wait for ")):
                yield found["directive"]
            else:
                assert not pending, f"two directives before one block: {pending}"
                pending = found["directive"]
        else:
            yield Block(found["language"], found["body"], pending)
            pending = ""
    assert not pending, f"a directive without a block: {pending}"


class Walkthrough:
    """Carries out guides in a folder; `close` ends what they started."""

    def __init__(self, folder: Path, forks: ForkServer, preparations: dict[str, Callable[[Walkthrough], None]]) -> None:
        self.folder = folder
        self.invite = ""
        self._forks = forks
        self._preparations = preparations
        self._started: list[Started] = []
        self._ports: dict[str, str] = {}
        self._logs = 0
        self._environment = {
            **environment(threads=1),
            "XDG_RUNTIME_DIR": str(folder / "runtime"),  # only the guide's own runs are found without an invite
            "HOME": str(folder),
        }
        (folder / "runtime").mkdir()

    def walk(self, page: str) -> int:
        """Carry out a page. Return the number of blocks that were run."""
        ran = 0
        for piece in pieces(page):
            if isinstance(piece, Block):
                ran += self._block(piece)
            else:
                self._act(piece)
        return ran

    def close(self) -> None:
        """End all commands in the background, with their children."""
        for started in self._started:
            if started.process.poll() is None:
                os.killpg(started.process.pid, signal.SIGKILL)
                started.process.wait(WAIT_S)

    def background(self, command: str, until: str) -> None:
        """Start a `swarmflow` command and wait until its output matches."""
        started = self._start(command)
        self._started.append(started)
        self._wait(started, until)
        if until.startswith("swarmflow2:"):
            found = re.search(until, started.output())
            assert found is not None
            self.invite = found[0]

    def _block(self, block: Block) -> int:
        kind, _, rest = block.directive.partition(" ")
        if kind == "file":
            (self.folder / rest).write_text(block.body, encoding="utf-8")
        elif kind == "python":
            program = [sys.executable, "-c", block.body]
            done = subprocess.run(program, cwd=self.folder, env=self._environment, capture_output=True, timeout=WAIT_S)
            assert done.returncode == 0, done.stderr.decode()
            return 1
        elif kind == "background":
            self.background(block.body, _quoted(rest))
            return 1
        elif block.language == "sh" and kind != "not":
            expected = _quoted(rest) if kind == "prints" else ""
            output = "".join(self._run(line) for line in _lines(block.body))
            assert re.search(expected, output), f"{block.body}\nprints\n{output}"
            return 1
        return 0

    def _act(self, directive: str) -> None:
        kind, _, rest = directive.partition(" ")
        if kind == "prepare":
            self._preparations[rest](self)
            return
        started = self._named(_quoted(rest))
        if kind == "wait":
            self._wait(started, _quoted(rest.partition(" until ")[2]))
        elif kind == "interrupt":
            started.process.send_signal(signal.SIGINT)
            assert started.process.wait(WAIT_S) == 0, started.output()
        else:
            started.process.send_signal(signal.SIGKILL)
            started.process.wait(WAIT_S)

    def _named(self, beginning: str) -> Started:
        alive = [one for one in self._started if one.process.poll() is None and one.command.startswith(beginning)]
        assert alive, f"nothing runs that begins with {beginning!r}"
        return alive[-1]

    def _run(self, line: str) -> str:
        """Run a line to its end and return its output."""
        if _is_swarmflow(line):
            started = self._start(line)
            code = started.process.wait(WAIT_S)
            assert code == 0, f"{line}: {code}\n{started.output()}"
            return started.output()
        done = subprocess.run(
            ["bash", "-c", self._filled(line)],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, f"{line}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _start(self, command: str) -> Started:
        own, words = dict(self._environment), shlex.split(self._filled(command), comments=True)
        while words[0] != "swarmflow":
            name, is_variable, value = words.pop(0).partition("=")
            own |= {name: value} if is_variable else {}  # else a prefix such as `nice`
        if words[1] in ("peer", "trainer") and "--listen" not in words:
            words += ["--listen", "127.0.0.1:0"]
        self._logs += 1
        log = self.folder / f"command-{self._logs}.log"
        return Started(command.strip(), self._forks.start(words[1:], log, own, folder=self.folder), log)

    def _filled(self, command: str) -> str:
        def port(found: re.Match[str]) -> str:
            return self._ports.setdefault(found[0], str(_free_port()))

        return _PORT.sub(port, re.sub(r"\bINVITE\b", self.invite, command))

    def _wait(self, started: Started, pattern: str) -> None:
        timeout = LoadAwareTimeout(WAIT_S)
        begun = len(started.output()) if not pattern else 0
        while not re.search(pattern, started.output()[begun:]):
            ended = started.process.poll()
            shown = f"{started.command}\nwaited for {pattern!r}\n{started.output()}"
            assert ended is None, f"ended with {ended}: {shown}"
            assert not timeout.expired(), shown
            time.sleep(POLL_S)


def _lines(body: str) -> list[str]:
    joined = body.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def _quoted(text: str) -> str:
    """Return what stands between the first two double quotes."""
    return text.split('"')[1]


def _is_swarmflow(line: str) -> bool:
    return re.match(r"(\w+=\S+ |nice )*swarmflow ", line) is not None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
