"""What several lives of processes have counted is added up, whether they ended in order or were killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from swarmflow.chaos.meters import Meters
from swarmflow.local.swarm import LocalProcess
from swarmflow.runtime.execution.metrics import Metrics


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[list[tuple[LocalProcess, Metrics]]]:
    """Two processes that wait, and the metrics that their logs name."""
    with ExitStack() as stack:
        found = []
        for number in range(2):
            metrics = Metrics()
            stack.callback(metrics.close)
            log = tmp_path / f"peer-{number}.log"
            log.write_text(f"12:00:00 metrics: http://127.0.0.1:{metrics.serve(0)}/metrics\n")
            process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            stack.enter_context(process)
            stack.callback(process.kill)
            found.append((LocalProcess(f"peer-{number}", log, process), metrics))
        yield found


def work(metrics: Metrics, *, computed_s: float, used_s: float, unused_s: float) -> None:
    metrics.compute_seconds.at("forward").inc(computed_s / 4)
    metrics.compute_seconds.at("backward").inc(computed_s * 3 / 4)
    metrics.settled_seconds.at("used").inc(used_s)
    metrics.settled_seconds.at("unused").inc(unused_s)


def test_what_the_killed_had_not_settled_is_lost_with_them(lives: list[tuple[LocalProcess, Metrics]]) -> None:
    (dying, first), (alive, second) = lives
    meters = Meters()
    for process, _ in lives:
        meters.follow(process)
    work(first, computed_s=10.0, used_s=6.0, unused_s=1.0)
    work(second, computed_s=20.0, used_s=17.0, unused_s=2.0)
    meters.read(dying, killed=True)
    dying.kill()
    first.close()
    meters.read(alive)
    compute = meters.compute()
    assert (compute.total_s, compute.lost_s, compute.unused_s) == (30.0, 3.0, 3.0)


def test_samples_are_summed_by_their_labels(lives: list[tuple[LocalProcess, Metrics]]) -> None:
    meters = Meters()
    for number, (process, metrics) in enumerate(lives):
        meters.follow(process)
        metrics.retries.at("gone").inc(3 + number)
        metrics.retries.at("full").inc()
    meters.read_all()
    assert meters.sum("swarmflow_retries_total", reason="gone") == 7.0
    assert meters.sum("swarmflow_retries_total") == 9.0
    by_label = meters.by_label("swarmflow_retries_total", "reason")
    assert {reason: count for reason, count in by_label.items() if count} == {"full": 2.0, "gone": 7.0}


def test_who_is_frozen_is_not_asked(lives: list[tuple[LocalProcess, Metrics]]) -> None:
    meters = Meters()
    process, metrics = lives[0]
    meters.follow(process)
    metrics.tokens.inc(5)
    meters.freeze(process, True)
    meters.read_all()
    assert meters.sum("swarmflow_tokens_total") == 0.0
    meters.freeze(process, False)
    meters.read_all()
    assert meters.sum("swarmflow_tokens_total") == 5.0
