"""A peer's limits on real processes, and what it reports: to the leader while it works, to its user at the end."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm, environment
from tests.swarm.runs import FINISH_S, LONG, prepare, recipe, settings

TOKENS = 2 * 32  # of a microbatch


@pytest.mark.swarm
@pytest.mark.extended
def test_a_peer_keeps_to_its_limits_and_tells_what_it_does(tmp_path: Path) -> None:
    model, corpus = prepare(tmp_path, "gpt2")
    with ForkServer(environment(threads=1)) as forks:
        run = settings(model, corpus, recipe("sgd", steps=LONG), stages=1)
        with LocalSwarm(tmp_path / "swarm", run, forks=forks) as swarm:
            swarm.start_trainer()
            small = swarm.start_peer("--memory-limit", "100MB")
            small.expendable = True
            assert swarm.wait(lambda: small.exit_code, "the refusal", FINISH_S) == 2
            refusal = small.log.read_text(encoding="utf-8").splitlines()[-1]
            assert refusal.startswith("swarmflow: --memory-limit 100.0 MB: stage 0 needs more than ")

            peer = swarm.start_peer("--memory-limit", "8GB", "--upload-limit", "80Mbit/s")
            peer.expendable = True

            def summary() -> dict[str, Any] | None:
                peers = [member for stage in swarm.status()["stages"] for member in stage["peers"]]
                found = peers[0]["summary"] if peers else None
                return found if found and found["microbatches"] and found["reach"] != "unknown" else None

            reported = swarm.wait(summary, "a summary with work in it", FINISH_S)
            peer.send(signal.SIGTERM)
            assert swarm.wait(lambda: peer.exit_code is not None, "its end", FINISH_S)
    assert reported["reach"] == "local"
    assert reported["tokens"] == reported["microbatches"] * TOKENS
    assert 50_000_000 < reported["memory_bytes"] < 8_000_000_000
    line = peer.log.read_text(encoding="utf-8").splitlines()[-1]
    assert "this peer has contributed " in line
    assert " microbatches, " in line
