"""What processes show on a real terminal, in a pipe, and as JSON."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.load_aware import LoadAwareTimeout, load_factor
from swarmflow.local.swarm import LocalSwarm
from tests.swarm.runs import TINY_LLAMA
from tests.terminal.emulator import seen

pytestmark = pytest.mark.swarm

SHOWN_S = 60.0
JSON = ("--log-format", "json")


class OnTerminal:
    """A `swarmflow` process with a pseudo-terminal of 100 columns and 40 rows."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.written = ""
        self._descriptor = descriptor

    def read(self, timeout_s: float) -> bool:
        """Take what the process writes; return False at its end."""
        if select.select([self._descriptor], [], [], timeout_s)[0]:
            try:
                self.written += os.read(self._descriptor, 1 << 16).decode("utf-8", "replace")
            except OSError:  # the other end is closed
                return False
        return True

    def wait(self, shows: Callable[[str], bool], what: str) -> str:
        """Return what the terminal shows as soon as it fits."""
        timeout = LoadAwareTimeout(SHOWN_S)
        while not shows(screen := "\n".join(seen(self.written))):
            assert not timeout.expired(), f"waited in vain for {what}:\n{screen}"
            assert self.read(0.2), f"ended before {what}:\n{screen}"
        return screen

    def interrupt(self) -> list[str]:
        """Press Ctrl-C; return the lines that remain when the process has ended, which it does without an error."""
        self.process.send_signal(signal.SIGINT)
        while self.read(SHOWN_S * load_factor()):
            pass
        assert self.process.wait(SHOWN_S) == 0
        return [line for line in seen(self.written) if line]


@contextmanager
def on_terminal(*arguments: str) -> Iterator[OnTerminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("SWARMFLOW_JOIN", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "swarmflow", *arguments],
        env={**environment, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield OnTerminal(process, ours)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[LocalSwarm]:
    """A trainer that logs as JSON and waits for the peers of both stages."""
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "corpus.txt").write_bytes(b"the quick brown fox jumps over the lazy dog\n" * 20)
    run: dict[str, dict[str, Any]] = {
        "run": {"name": "test", "output": "out"},
        "model": {"config": dict(TINY_LLAMA), "cut": [1]},
        "data": {"path": str(folder / "corpus.txt"), "seq_len": 16},
        "train": {"steps": 4, "microbatches": 2, "microbatch_sequences": 1},
    }
    with LocalSwarm(folder / "swarm", run, forks=forks) as swarm:
        swarm.start_trainer(*JSON)
        yield swarm


def records(log: Path) -> list[dict[str, object]]:
    """The lines of a log in JSON, but for one that is being written."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]


def test_a_peer_shows_what_it_does_from_the_first_second_and_loses_no_line(swarm: LocalSwarm) -> None:
    listen = ("--listen", "127.0.0.1:0")
    with on_terminal("peer", "--join", swarm.invite, "--stage", "0", *listen) as peer:
        first = peer.wait(lambda screen: "swarmflow peer" in screen, "the first picture")
        assert "granted" not in first
        peer.wait(lambda screen: "waits for a peer for stage 1" in screen, "the reason for waiting")
        shown = peer.wait(lambda screen: "stage 0 ●   stage 1 nobody" in screen, "who serves which stage")
        assert "test   gathering   step 0 of" in shown
        peer.wait(lambda screen: "this peer has loaded stage 0" in screen, "what it does itself")
        lines = peer.interrupt()
    assert "\x1b[?25l" in peer.written
    assert peer.written.rfind("\x1b[?25h") > peer.written.rfind("\x1b[?25l")  # the cursor is back
    texts = ("peer ", "granted stage 0;", "stage 0 is loaded", "draining: ", "drained: ", "this peer has computed no")
    for text in texts:
        assert sum(line[9:].startswith(text) for line in lines) == 1, lines
    assert all(line[2:3] == line[5:6] == ":" for line in lines), lines  # the picture is gone, and the log remains


@pytest.mark.extended
def test_status_watch_redraws_a_terminal_and_leaves_the_last_picture(swarm: LocalSwarm) -> None:
    trainer = swarm.trainers[0]
    with on_terminal("status", "--watch", "--join", swarm.invite) as watch:
        watch.wait(lambda screen: "waits for a peer for stage" in screen, "the run")
        trainer.send(signal.SIGSTOP)
        try:
            watch.wait(lambda screen: "no answer nobody has answered within" in screen, "that nobody answers")
        finally:
            trainer.send(signal.SIGCONT)
        watch.wait(lambda screen: "no answer" not in screen and "waits for" in screen, "the answer")
        lines = watch.interrupt()
    assert lines[0].startswith("test   gathering   step 0 of")
    assert sum(line.endswith("nobody") for line in lines) == 2


def test_status_watch_in_a_pipe_prints_what_changes(swarm: LocalSwarm) -> None:
    command = [sys.executable, "-m", "swarmflow", "status", "--watch", "--join", swarm.invite]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        try:
            lines = [watch.stdout.readline()]
            assert "run test: gathering, 1 trainer" in lines[0]
            peer = swarm.start_peer(stage=1)
            while "stage 1: 1" not in lines[-1]:
                lines.append(watch.stdout.readline())
                assert lines[-1], lines
        finally:
            watch.send_signal(signal.SIGINT)
        assert watch.wait(SHOWN_S) == 0
    assert any("loads stage 1" in line for line in lines)
    assert "\x1b" not in "".join(lines)
    peer.kill()


def test_a_log_in_json_is_json_to_the_last_line(swarm: LocalSwarm) -> None:
    peer, trainer = swarm.start_peer(*JSON, stage=1), swarm.trainers[0]
    swarm.wait(lambda: any("is loaded" in str(line["message"]) for line in records(peer.log)), "the stage", SHOWN_S)
    deaths = sum(line.get("kind") == "died" for line in records(trainer.log))
    peer.kill()

    def died() -> list[dict[str, object]]:
        return [line for line in records(trainer.log) if line.get("kind") == "died"][deaths:]

    [death] = swarm.wait(died, "the death", SHOWN_S)
    assert death["level"] == "warning"
    assert isinstance(death["fields"], dict)
    assert death["fields"]["stage"] == 1
    assert isinstance(death["time"], float)
    assert abs(death["time"] - time.time()) < 600
    [invite] = [line["fields"] for line in records(trainer.log) if line.get("kind") == "invite"]
    assert invite == {"invite": swarm.invite}


def test_a_wait_of_more_than_two_seconds_is_named_in_a_plain_log(swarm: LocalSwarm) -> None:
    trainer = swarm.trainers[0]
    trainer.send(signal.SIGSTOP)
    try:
        peer = swarm.start_peer(stage=1)
        text = "joining the DHT by way of /ip4/127.0.0.1/tcp/"  # its network daemon answers, and it does not
        swarm.wait(lambda: text in peer.log.read_text(encoding="utf-8"), "what the peer waits for", SHOWN_S)
    finally:
        trainer.send(signal.SIGCONT)
    peer.kill()
