"""What counts as a stall: work of one's own without progress, or a blocked event loop; waiting for others does not."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path

import pytest

from swarmflow import cli
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.progress import BLOCKED_S, ProgressWatch


class Clock:
    """Virtual time."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def watched(*looks: tuple[object, bool], every_s: float = 1.0) -> float:
    """Return how long a process is stalled that has shown these signs, one each second, the last one now."""
    clock = Clock()
    watch = ProgressWatch(clock)
    for signs, has_work in looks:
        clock.now_s += every_s
        watch.look(signs, has_work)
    return watch.stalled_s()


def test_a_process_that_waits_for_others_is_not_stalled() -> None:
    assert watched(*[("v1", False)] * 1000) == 0.0


def test_work_without_progress_counts_from_the_last_progress() -> None:
    assert watched(("v1", True), ("v2", True), *[("v2", True)] * 300) == 300.0


def test_progress_and_idle_time_end_a_stall() -> None:
    assert watched(*[("v1", True)] * 300, ("v2", True)) == 0.0
    assert watched(*[("v1", True)] * 300, ("v1", False)) == 0.0
    assert watched(*[("v1", True)] * 300, ("v1", False), ("v1", True)) == 0.0


def test_a_blocked_event_loop_is_stalled_whether_or_not_it_has_work() -> None:
    clock = Clock()
    watch = ProgressWatch(clock)
    watch.look("v1", False)
    clock.now_s += BLOCKED_S - 1
    assert watch.stalled_s() == 0.0
    clock.now_s += 30
    assert watch.stalled_s() == BLOCKED_S + 29


def test_nothing_is_stalled_before_the_first_look_and_after_the_last() -> None:
    clock = Clock()
    watch = ProgressWatch(clock)
    clock.now_s += 1000
    assert watch.stalled_s() == 0.0
    watch.look("v1", True)
    watch.pause()
    clock.now_s += 1000
    assert watch.stalled_s() == 0.0


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> tuple[Metrics, str]:
    """Metrics that are served, and their port; a proxy of the environment must not matter."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    metrics = Metrics()
    return metrics, str(metrics.serve(0))


def test_the_command_tells_a_stalled_process_from_one_that_waits(
    serving: tuple[Metrics, str], capsys: pytest.CaptureFixture[str]
) -> None:
    metrics, port = serving
    clock = Clock()
    metrics.progress._clock = clock
    metrics.version.set(7)
    try:
        metrics.progress.look("signs", False)
        assert cli.main(["health", "--metrics-port", port]) == 0
        assert capsys.readouterr().out == "healthy at version 7\n"
        metrics.progress.look("signs", True)
        clock.now_s += 601
        assert cli.main(["health", "--metrics-port", port]) == 1
        assert re.fullmatch(r"swarmflow: no progress for 601 s at version 7, .*\n", capsys.readouterr().err)
        assert cli.main(["health", "--metrics-port", port, "--stalled-max", "900"]) == 0
    finally:
        metrics.close()
    assert cli.main(["health", "--metrics-port", port]) == 1
    assert "is the process running" in capsys.readouterr().err


def test_a_port_that_speaks_something_else_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"\x13/multistream/1.0.0\n")

        thread = threading.Thread(target=greet)
        thread.start()
        assert cli.main(["health", "--metrics-port", str(server.getsockname()[1])]) == 1
        thread.join()
    assert "is the process running, with this --metrics-port?" in capsys.readouterr().err


def test_the_command_sends_the_token_of_the_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics, file = Metrics(), tmp_path / "token"
    file.write_text("a-token\n")
    port = str(metrics.serve(0, token="a-token"))
    try:
        assert cli.main(["health", "--metrics-port", port]) == 1
        assert "Unauthorized" in capsys.readouterr().err
        assert cli.main(["health", "--metrics-port", port, "--metrics-token", str(file)]) == 0
        monkeypatch.setenv("SWARMFLOW_METRICS_TOKEN", "a-token")
        assert cli.main(["health", "--metrics-port", port]) == 0
    finally:
        metrics.close()
