"""The dashboard before a real Prometheus that scrapes a real swarm: every panel has something to draw."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm
from tests.swarm.runs import prepare, recipe, settings

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.swarm,
    pytest.mark.slow,
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus here; on Debian: apt-get install prometheus"),
]

DOCKER = Path(__file__).parents[2] / "docker"
DASHBOARD = json.loads((DOCKER / "grafana" / "dashboards" / "swarmflow.json").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
SERVING_S = 90.0
ANSWER_S = 60.0

FED = [
    *(
        f'swarmflow_microbatches_total{{job="peer",direction="{direction}"}}'
        for direction in ("forward", "loss", "backward")
    ),
    *(
        f'swarmflow_compute_seconds_total{{job="peer",direction="{direction}"}}'
        for direction in ("forward", "loss", "backward")
    ),
    *(f'swarmflow_sent_bytes_total{{job="peer",kind="{kind}"}}' for kind in ("Forward", "Backward", "ReducePart")),
    *(f'swarmflow_received_bytes_total{{job="peer",kind="{kind}"}}' for kind in ("Forward", "Backward", "ReduceSum")),
    *(f'swarmflow_sent_bytes_total{{job="trainer",kind="{kind}"}}' for kind in ("Forward", "Evaluate", "Response")),
    *(f'swarmflow_received_bytes_total{{job="trainer",kind="{kind}"}}' for kind in ("Backward", "Done", "Response")),
    'swarmflow_capacity_microbatches{job="peer"}',
    'swarmflow_journal_bytes{job="peer"}',
    'swarmflow_version{job="peer"}',
    'swarmflow_step{job="peer"}',
    'swarmflow_peers{job="peer"}',
    'swarmflow_peers{job="trainer"}',
    'swarmflow_version{job="trainer"}',
    'swarmflow_tokens_total{job="trainer"}',
    'swarmflow_loss{job="trainer"}',
    'swarmflow_validation_loss{job="trainer"}',
    'swarmflow_grad_norm{job="trainer"}',
    'swarmflow_learning_rate{job="trainer"}',
    'swarmflow_step_seconds_count{job="trainer"}',
    'swarmflow_process_info{role="peer"}',
    'swarmflow_process_info{role="trainer"}',
]


@dataclass(frozen=True)
class Watched:
    """A swarm and the Prometheus that scrapes it."""

    swarm: LocalSwarm
    url: str

    def values(self, query: str) -> list[float]:
        """The query's present values, those that are no number left out."""
        text = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{text}", timeout=10) as answer:
            result = json.load(answer)["data"]["result"]
        values = [float(series["value"][1]) for series in result]
        return [value for value in values if not math.isnan(value)]

    def wait(self, query: str, above: float = -math.inf) -> float:
        """The largest value of a query, as soon as it is above a bound."""
        return self.swarm.wait(
            lambda: [value for value in self.values(query) if value > above], f"an answer to {query}", ANSWER_S
        )[0]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[Watched]:
    """Two stages, three peers and a trainer that validates, at work until the tests are over."""
    folder = tmp_path_factory.mktemp("dashboard")
    model, corpus = prepare(folder, "llama")
    run: dict[str, Any] = settings(model, corpus, recipe("adamw", steps=100_000), stages=2)
    validation = folder / "validation.txt"
    validation.write_bytes(corpus.read_bytes()[:200])
    run["data"]["validation_path"] = str(validation)
    run["train"] |= {"validate_every": 5, "checkpoint_every": 20}
    with LocalSwarm(folder / "swarm", run, forks=forks) as swarm:
        swarm.start_trainer("--metrics-port", "0")
        for _ in range(3):
            swarm.start_peer("--metrics-port", "0")
        roles = {"trainer": swarm.trainers, "peer": swarm.peers}
        targets = {role: [_address(swarm, process) for process in processes] for role, processes in roles.items()}
        process, log = _start_prometheus(folder, targets)
        try:
            yield Watched(swarm, swarm.wait(lambda: _listening(process, log), "prometheus", ANSWER_S))
        finally:
            process.kill()
            process.wait()


def _address(swarm: LocalSwarm, process: LocalProcess) -> str:
    """Where a process says that it serves its metrics."""

    def address() -> str | None:
        found = re.search(r"metrics: http://(\S+)/metrics", process.log.read_text(encoding="utf-8"))
        return found[1] if found else None

    return swarm.wait(address, f"the metrics port of {process.name}", SERVING_S)


def _start_prometheus(folder: Path, targets: dict[str, list[str]]) -> tuple[subprocess.Popen[bytes], Path]:
    """Prometheus with docker/prometheus.yml's jobs, found by address instead of by name, and looked at each second."""
    assert PROMETHEUS is not None
    config = yaml.safe_load((DOCKER / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"]["scrape_interval"] = "1s"
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": targets[job["job_name"]]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return process, log


def _listening(process: subprocess.Popen[bytes], log: Path) -> str | None:
    """Where Prometheus answers, once it does."""
    text = log.read_text(encoding="utf-8")
    if process.poll() is not None:
        pytest.fail(f"prometheus did not start:\n{text}")
    found = re.search(r'msg="Listening on" address=(\S+)', text)
    return f"http://{found[1]}" if found and _is_ready(f"http://{found[1]}") else None


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


def test_prometheus_reaches_every_process(watched: Watched) -> None:
    assert watched.wait("sum(up)", above=3.5) == 4


@pytest.mark.parametrize("query", QUERIES)
def test_each_panel_has_something_to_draw(watched: Watched, query: str) -> None:
    assert math.isfinite(watched.wait(query))


@pytest.mark.parametrize("query", FED)
def test_a_swarm_at_work_feeds_its_metrics(watched: Watched, query: str) -> None:
    assert watched.wait(query, above=0) > 0


def test_deaths_are_counted(watched: Watched) -> None:
    """The only peer of its stage dies: the run goes back, and one of the other stage's two takes the place."""
    swarm = watched.swarm
    name = swarm.wait(lambda: _alone(swarm), "three peers on two stages", SERVING_S)
    [victim] = [peer for peer in swarm.peers if f"peer {name[-6:]} of run" in peer.log.read_text(encoding="utf-8")]
    victim.kill()
    assert watched.wait("sum(swarmflow_suspected_total)", above=0) >= 1
    assert watched.wait('sum(swarmflow_decisions_total{kind="rollbacks"})', above=0) >= 1
    assert watched.wait("sum(swarmflow_moves_total)", above=0) >= 1


def _alone(swarm: LocalSwarm) -> str | None:
    """The peer that has a stage to itself, once all three are there."""
    stages = [stage["peers"] for stage in swarm.status()["stages"]]
    loading = any(peer["phase"] == "loading" for peers in stages for peer in peers)
    if loading or sorted(map(len, stages)) != [1, 2]:
        return None
    return str(min(stages, key=len)[0]["name"])
