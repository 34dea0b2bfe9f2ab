"""Rules and dashboards before a real Prometheus that finds and scrapes a real swarm by itself.

Every rule evaluates, every panel has something to draw, and peers that die vanish from the targets and raise an alert.
"""

from __future__ import annotations

import contextlib
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
from swarmflow.local.swarm import LocalProcess, LocalSwarm, LocalSwarmError
from swarmflow.monitoring.prometheus_rules import ALERTS, RECORDINGS
from tests.swarm.runs import prepare, recipe, settings

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.swarm,
    pytest.mark.slow,
    pytest.mark.extended,
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus here; on Debian: apt-get install prometheus"),
]

DOCKER = Path(__file__).parents[2] / "docker"
DASHBOARDS = [json.loads(path.read_text(encoding="utf-8")) for path in (DOCKER / "grafana" / "dashboards").iterdir()]
QUERIES = sorted(
    {
        target["expr"].replace("$peer", ".*").replace("$stage", ".*")
        for dashboard in DASHBOARDS
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
)
TOKEN = "a-token-for-the-test"
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
    *(f'swarmflow_{name}_seconds_count{{job="peer"}}' for name in ("pass", "reduce", "update")),
    *(
        f'swarmflow_codec_bytes_total{{tensor="{tensor}",form="{form}"}}'
        for tensor in ("activation", "gradient")
        for form in ("plain", "encoded")
    ),
    'swarmflow_swarm_peer_memory_bytes{job="swarm"}',
    'swarmflow_swarm_stage_used_seconds{job="swarm"}',
    'swarmflow_swarm_version{job="swarm"}',
    'swarmflow_swarm_stage_slowest_link_seconds{job="swarm"}',
    'swarmflow_flow_cost_seconds_total{job="peer",when="before"}',
    'swarmflow_flow_cost_seconds_total{job="peer",when="least"}',
]


@dataclass(frozen=True)
class Watched:
    """A swarm and the Prometheus that scrapes it."""

    swarm: LocalSwarm
    url: str

    def api(self, path: str) -> Any:  # noqa: ANN401
        """The data of an answer of Prometheus."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[float]:
        """The query's present values, those that are no number left out."""
        result = self.api(f"query?{urllib.parse.urlencode({'query': query})}")["result"]
        values = [float(series["value"][1]) for series in result]
        return [value for value in values if not math.isnan(value)]

    def peers(self) -> dict[str, str]:
        """The peers that Prometheus has found, by their names, and whether it reaches each: `up`, `down`, `unknown`."""
        found = self.api("targets?state=active")["activeTargets"]
        return {target["labels"]["peer"]: target["health"] for target in found if target["labels"]["job"] == "peer"}

    def wait(self, query: str, above: float = -math.inf) -> float:
        """The largest value of a query, as soon as it is above a bound."""
        return self.swarm.wait(
            lambda: [value for value in self.values(query) if value > above], f"an answer to {query}", ANSWER_S
        )[0]


@pytest.fixture
def watched(tmp_path: Path, forks: ForkServer) -> Iterator[Watched]:
    """Two stages, four peers and a trainer that validates, at work; they want a token."""
    folder = tmp_path
    model, corpus = prepare(folder, "llama")
    run: dict[str, Any] = settings(model, corpus, recipe("adamw", steps=100_000), stages=2, codec="blockwise8")
    validation = folder / "validation.txt"
    validation.write_bytes(corpus.read_bytes()[:200])
    run["data"]["validation_path"] = str(validation)
    run["train"] |= {"validate_every": 5, "checkpoint_every": 20, "router": "flow"}
    token = folder / "token"
    token.write_text(TOKEN, encoding="utf-8")
    options = ("--metrics-port", "0", "--metrics-token", str(token))
    with LocalSwarm(folder / "swarm", run, forks=forks) as swarm:
        trainer = swarm.start_trainer(*options)
        for number in range(4):
            swarm.start_peer(*options, stage=number % 2)
        process, log = _start_prometheus(folder, _address(swarm, trainer), token)
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


def _start_prometheus(folder: Path, trainer: str, token: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Prometheus with docker/'s jobs and rules, the trainer at its address, all of it each second.

    The alerts have the time of a test: a condition has to last for a second.
    """
    assert PROMETHEUS is not None
    config = yaml.safe_load((DOCKER / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(folder / "rules.yml")]
    authorization = {"type": "Bearer", "credentials_file": str(token)}
    for job in config["scrape_configs"]:
        job["authorization"] = authorization
        if job.pop("dns_sd_configs", None):
            job["static_configs"] = [{"targets": [trainer]}]
        else:
            url = f"http://{trainer}/targets"
            job["http_sd_configs"] = [{"url": url, "refresh_interval": "1s", "authorization": authorization}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    rules = (DOCKER / "prometheus-rules.yml").read_text(encoding="utf-8")
    (folder / "rules.yml").write_text(re.sub(r"for: \d+m", "for: 1s", rules), encoding="utf-8")
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


def test_a_swarm_is_found_measured_and_watched_by_prometheus(watched: Watched) -> None:
    """One test, so that one worker starts one swarm."""
    swarm = watched.swarm
    swarm.wait(lambda: list(watched.peers().values()) == ["up"] * 4, "four targets that are up", SERVING_S)
    assert_nothing_is_told_without_the_token(_address(swarm, swarm.trainers[0]))
    assert_all_have_data(watched)
    assert_every_rule_evaluates(watched)
    assert watched.values(firing("StageWithOnePeer")) == []
    before = set(watched.peers())
    for peer in swarm.peers[:2]:  # one of each stage
        peer.kill()
    swarm.wait(lambda: len(watched.peers()) == 2, "the dead to vanish from the targets", ANSWER_S)
    assert set(watched.peers()) < before
    swarm.wait(lambda: watched.values(firing("StageWithOnePeer")) == [1.0, 1.0], "an alert for each stage", ANSWER_S)
    assert watched.wait("sum(swarmflow_suspected_total)", above=0) >= 2
    swarm.peers[2].kill()
    swarm.wait(lambda: watched.values(firing("StageWithoutPeer")) == [1.0], "the alert of the empty stage", ANSWER_S)


def firing(alert: str) -> str:
    return f'ALERTS{{alertname="{alert}",alertstate="firing"}}'


def assert_nothing_is_told_without_the_token(address: str) -> None:
    for path in ("metrics", "metrics/swarm", "targets"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{address}/{path}", timeout=10)
        assert caught.value.code == 401


def assert_all_have_data(watched: Watched) -> None:
    """Every panel has something to draw, and a swarm at work feeds every metric."""
    missing = dict.fromkeys(QUERIES, -math.inf) | dict.fromkeys(FED, 0.0)

    def nothing_is_missing() -> bool:
        for query, least in list(missing.items()):
            if any(value > least for value in watched.values(query)):
                del missing[query]
        return not missing

    with contextlib.suppress(LocalSwarmError):
        watched.swarm.wait(nothing_is_missing, "data of all panels", ANSWER_S)
    assert list(missing) == []


def assert_every_rule_evaluates(watched: Watched) -> None:
    def rules() -> list[dict[str, Any]] | None:
        found = [rule for group in watched.api("rules")["groups"] for rule in group["rules"]]
        return found if all(rule["health"] != "unknown" for rule in found) else None

    found = watched.swarm.wait(rules, "all rules to be evaluated", ANSWER_S)
    assert {rule["name"]: rule.get("lastError", "") for rule in found if rule["health"] != "ok"} == {}
    assert {rule["name"] for rule in found} == {rule.name for rule in (*RECORDINGS, *ALERTS)}
