"""`swarmflow peer --device cpu,cpu`: a peer for each device under one parent, which tells how each of them ends."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import psutil
import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm
from swarmflow.runtime.transport.identity import load_identity
from tests.swarm.runs import FINISH_S, LONG, prepare, recipe, settings


def start_host(swarm: LocalSwarm, name: str) -> LocalProcess:
    folder = str(swarm.state_folder("host"))
    options = ("--device", "cpu,cpu", "--listen", "127.0.0.1:0", "--state-dir", folder)
    return swarm.start_other(name, "peer", "--join", swarm.invite, *options)


def serving(swarm: LocalSwarm) -> set[str]:
    """The names of the peers that serve."""
    stages = swarm.status()["stages"]
    return {peer["name"] for stage in stages for peer in stage["peers"] if peer["phase"] == "serving"}


@pytest.mark.swarm
@pytest.mark.extended  # its peers load torch each: nobody forks them
def test_each_device_is_a_peer_and_none_is_started_again_silently(tmp_path: Path, forks: ForkServer) -> None:
    model, corpus = prepare(tmp_path, "gpt2")
    run = settings(model, corpus, recipe("sgd", steps=LONG), stages=2)
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
        swarm.start_trainer()
        host = start_host(swarm, "host")
        swarm.wait(lambda: len(swarm.steps()) > 1, "two steps", FINISH_S)
        names = {load_identity(swarm.state_folder("host") / str(n) / "identity.key").name for n in range(2)}
        assert serving(swarm) == names
        log = host.log.read_text(encoding="utf-8")
        assert "one peer for each device: cpu 0, cpu 1" in log
        for label in ("cpu 0", "cpu 1"):
            assert re.search(rf"^\[{label}\] \d\d:\d\d:\d\d stage \d is loaded", log, re.MULTILINE), log

        one, other = sorted(psutil.Process(host.pid).children(), key=lambda child: "1" in child.cmdline()[-3])
        one.kill()
        told = re.compile(
            r"the peer of (cpu \d) has ended with signal 9 and is not started again; left: (cpu \d)$", re.M
        )
        found = swarm.wait(lambda: told.search(host.log.read_text(encoding="utf-8")), "the line", FINISH_S)
        assert {found[1], found[2]} == {"cpu 0", "cpu 1"}
        assert (host.exit_code, other.is_running()) == (None, True)

        host.kill()  # no signal reaches the peer that is left, and it leaves all the same
        swarm.wait(lambda: not other.is_running() or other.status() == psutil.STATUS_ZOMBIE, "its end", FINISH_S)

        again = start_host(swarm, "host-again")
        swarm.wait(lambda: serving(swarm) == names, "both again, under their names", FINISH_S)
        again.send(signal.SIGTERM)
        assert swarm.wait(lambda: again.exit_code is not None, "its end", FINISH_S)
        assert again.exit_code == 0
        ends = re.findall(r"^\[(cpu \d)\] .*this peer has (?:contributed|computed)", again.log.read_text(), re.M)
        assert sorted(ends) == ["cpu 0", "cpu 1"]
