"""ForkedProcess processes behave as started ones do: their output, exit codes, signals and sessions."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from swarmflow import __version__
from swarmflow.local.forkserver import ForkedProcess, ForkServer, ForkServerError
from swarmflow.local.swarm import environment
from tests.owners import invite_of

END_S = 30.0
# A command that waits for something: for a run that nobody has started, whose invite is well formed.
NOBODY = "/ip4/127.0.0.1/tcp/9/p2p/QmNnooDu7bfjPFoTZYxMNLWUQJyrVwtbZg5gBMjTezGAJN"


def waiting_peer(server: ForkServer, log: Path) -> ForkedProcess:
    return server.start(["peer", "--join", str(invite_of(NOBODY)), "--listen", "127.0.0.1:0"], log)


def test_what_it_prints_is_in_its_log_and_its_exit_code_is_known(forks: ForkServer, tmp_path: Path) -> None:
    version = forks.start(["--version"], tmp_path / "version.log")
    wrong = forks.start(["peer", "--stage", "x"], tmp_path / "wrong.log")
    assert (version.wait(END_S), wrong.wait(END_S)) == (0, 2)
    assert __version__ in (tmp_path / "version.log").read_text(encoding="utf-8")
    assert "--stage x: must be auto" in (tmp_path / "wrong.log").read_text(encoding="utf-8")


def test_its_logs_are_there_at_once_or_it_is_not_started(forks: ForkServer, tmp_path: Path) -> None:
    for number in range(5):
        log, errors = tmp_path / f"{number}.log", tmp_path / f"{number}.errors"
        process = forks.start(["--version"], log, errors=errors)
        assert log.exists()
        assert errors.exists()
        process.wait(END_S)
        assert __version__ in log.read_text(encoding="utf-8")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        forks.start(["--version"], tmp_path / "nowhere" / "version.log")


def test_a_signal_that_ends_it_is_its_exit_code(forks: ForkServer, tmp_path: Path) -> None:
    process = waiting_peer(forks, tmp_path / "peer.log")
    assert process.poll() is None
    assert os.getsid(process.pid) == process.pid
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    process.send_signal(signal.SIGKILL)
    assert process.wait(END_S) == -signal.SIGKILL
    process.send_signal(signal.SIGKILL)  # to nobody


def test_nobody_is_left_when_the_server_ends(tmp_path: Path) -> None:
    with ForkServer(environment(threads=1)) as server:
        process = waiting_peer(server, tmp_path / "peer.log")
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    with pytest.raises(ForkServerError, match="has ended"):
        process.poll()


def test_nobody_is_left_when_the_server_is_killed(tmp_path: Path) -> None:
    recording = tmp_path / "recording.json"
    recording.write_text('{"duration_s": 0, "frames": [], "events": [], "steps": []}')
    with ForkServer(environment(threads=1)) as server:
        process = server.start(["dashboard", "--recording", str(recording)], tmp_path / "dashboard.log")
        ended = os.pidfd_open(process.pid)
        server._server.kill()
        try:
            assert select.select([ended], [], [], END_S)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(ended, signal.SIGKILL)
            os.close(ended)
        with pytest.raises(ForkServerError, match="has ended, and with it all of its processes"):
            process.poll()
