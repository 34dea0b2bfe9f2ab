"""The page of a trainer, in a real browser: a peer of a real swarm is killed, and the page shows who takes over."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.load_aware import load_factor
from swarmflow.local.swarm import LocalProcess, LocalSwarm
from tests.page.browser import MISSING, Browser, browser
from tests.swarm.runs import FINISH_S, LONG, prepare, recipe, settings, start

pytestmark = [pytest.mark.swarm, pytest.mark.skipif(bool(MISSING) and "CI" not in os.environ, reason=MISSING)]

SHOWN_S = 2.0


def test_a_kill_and_its_repair_are_shown_within_two_seconds(tmp_path: Path, forks: ForkServer) -> None:
    model, corpus = prepare(tmp_path, "llama")
    run = settings(model, corpus, recipe("sgd", steps=LONG, microbatches=24), codec="blockwise8")
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm, browser(tmp_path) as chromium:
        start(swarm, trainers=1, peers=6, trainer_options=("--page", "0"))
        swarm.wait_steps(2, FINISH_S)
        [url] = re.findall(r"page: (\S+)", swarm.trainers[0].log.read_text())
        chromium.open(url)
        chromium.wait("return document.querySelectorAll('#peers tbody tr:not(.space)').length === 6", "the peers")
        chromium.wait("return window.swarmflow.view.hops.length", "microbatches on their way")
        chromium.wait("return window.swarmflow.view.stages[0].peers[0].summary", "what a peer reports", timeout_s=30.0)
        assert_shown(chromium, swarm.peers[1])
        chromium.wait("return document.querySelectorAll('#peers tbody tr:not(.space)').length === 5", "one peer less")
        assert [entry for entry in chromium.console() if entry["level"] == "SEVERE"] == []


def assert_shown(chromium: Browser, victim: LocalProcess) -> None:
    """Kill a peer amid its work: within SHOWN_S, on an idle machine, the page tells of it, and who takes over.

    It is frozen first until it is known to hold a microbatch: between two steps there would be nothing to take over.
    """
    [name] = re.findall(r"peer (\w{6}) of run", victim.log.read_text())
    victim.send(signal.SIGSTOP)
    holds = "return window.swarmflow.view.hops.some(hop => hop[2].startsWith(arguments[0]) && hop[3] === 'forward')"
    chromium.wait(holds, "a microbatch at the victim", name)
    victim.send(signal.SIGKILL)
    killed_s = time.monotonic()
    chromium.wait("return document.querySelector('#events .died')", "the death")
    chromium.wait("return document.querySelector('#events .repaired')", "the repair")
    assert time.monotonic() - killed_s < SHOWN_S * load_factor()
