"""The page of a trainer, in a real browser: a peer of a real swarm is killed, and the page shows who takes over."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.load_aware import load_factor
from swarmflow.local.swarm import LocalProcess, LocalSwarm
from tests.page.browser import MISSING, Browser, browser
from tests.swarm.runs import FINISH_S, LONG, STAGES, prepare, recipe, settings, start

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.extended,
    pytest.mark.skipif(bool(MISSING) and "CI" not in os.environ, reason=MISSING),
]

SHOWN_S = 2.0
MICROBATCHES = 24
WORKERS = f"""
    const done = window.swarmflow.view.hops.filter(([index, stage, peer, state]) => state === "done");
    return done.length < {STAGES * MICROBATCHES} ? done.map(([index, stage, peer]) => peer) : [];
"""
WORKER = f"return (() => {{{WORKERS}}})().pop()"


def test_a_kill_and_its_repair_are_shown_within_two_seconds(tmp_path: Path, forks: ForkServer) -> None:
    model, corpus = prepare(tmp_path, "llama")
    run = settings(model, corpus, recipe("sgd", steps=LONG, microbatches=MICROBATCHES), codec="blockwise8")
    with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm, browser(tmp_path) as chromium:
        start(swarm, trainers=1, peers=6, trainer_options=("--page", "0"))
        swarm.wait_steps(2, FINISH_S)
        [url] = re.findall(r"page: (\S+)", swarm.trainers[0].log.read_text())
        chromium.open(url)
        chromium.wait("return document.querySelectorAll('#peer-table tbody tr').length === 6", "the peers")
        chromium.wait("return window.swarmflow.view.hops.length", "microbatches on their way")
        chromium.wait("return window.swarmflow.view.stages[0].peers[0].summary", "what a peer reports", timeout_s=30.0)
        assert_shown(chromium, swarm.peers)
        chromium.wait("return document.querySelectorAll('#peer-table tbody tr').length === 5", "one peer less")
        assert [entry for entry in chromium.console() if entry["level"] == "SEVERE"] == []


def assert_shown(chromium: Browser, peers: Sequence[LocalProcess]) -> None:
    """Kill a peer amid a step: within SHOWN_S, on an idle machine, the page tells of it, and who takes over."""
    frozen_amid_step(chromium, peers).send(signal.SIGKILL)
    killed_s = time.monotonic()
    chromium.wait("return document.querySelector('#events .died')", "the death")
    chromium.wait("return document.querySelector('#events .repaired')", "the repair")
    assert time.monotonic() - killed_s < SHOWN_S * load_factor()


def frozen_amid_step(chromium: Browser, peers: Sequence[LocalProcess]) -> LocalProcess:
    """Stop a peer while a step has work of it and lacks some of others', so that it cannot be committed without it.

    Between two steps, or amid a commit, there would be nothing to take over: then it goes on, and whoever works then is
    stopped. That may be another one: who does not answer for a moment is given little to do.
    """
    by_name = {name: peer for peer in peers for name in re.findall(r"peer (\w{6}) of run", peer.log.read_text())}
    deadline_s = time.monotonic() + FINISH_S
    while time.monotonic() < deadline_s:
        worker = chromium.wait(WORKER, "a peer that has done something in a step")
        victim = by_name[worker[:6]]
        victim.send(signal.SIGSTOP)
        chromium.wait("return window.swarmflow.view.time > arguments[0]", "a view of later", time.time())
        if worker in chromium.run(WORKERS):
            return victim
        victim.send(signal.SIGCONT)
    pytest.fail("whenever a peer was stopped, no step had work of it")
