"""The docker folder, as far as it can be checked without docker: files parse, and what they name exists."""

from __future__ import annotations

import importlib.metadata
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from swarmflow import cli, config

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
DASHBOARDS = {
    path: json.loads(path.read_text(encoding="utf-8")) for path in (DOCKER / "grafana" / "dashboards").iterdir()
}
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
PROMETHEUS = yaml.safe_load((DOCKER / "prometheus.yml").read_text(encoding="utf-8"))
PANELS = [panel for dashboard in DASHBOARDS.values() for panel in dashboard["panels"]]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_the_dashboards_show_what_was_promised() -> None:
    assert {path.stem for path in DASHBOARDS} == {"swarm", "stage", "peer", "network"}
    shown = " ".join(QUERIES)
    for name in ("tokens_total", "loss", "queue_length", "sent_bytes", "received_bytes", "retries_total"):
        assert f"swarmflow_{name}" in shown
    for dashboard in DASHBOARDS.values():
        assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS)


def test_grafana_finds_the_dashboard_and_its_source() -> None:
    provisioning = DOCKER / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text(encoding="utf-8"))
    providers = yaml.safe_load((provisioning / "dashboards" / "swarmflow.yaml").read_text(encoding="utf-8"))
    [source] = sources["datasources"]
    mounted = dict(volume.split(":")[:2] for volume in COMPOSE["services"]["grafana"]["volumes"])
    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"]}
    assert mounted["./grafana/dashboards"] == providers["providers"][0]["options"]["path"]
    assert source["url"] == "http://prometheus:9090"


def test_prometheus_finds_the_trainers_and_asks_them_for_the_peers() -> None:
    jobs = {job["job_name"]: job for job in PROMETHEUS["scrape_configs"]}
    assert set(jobs) == {"trainer", "swarm", "peer"}
    for name in ("trainer", "swarm"):
        [source] = jobs[name]["dns_sd_configs"]
        assert source["names"] == ["trainer"]
        assert f"--metrics-port={source['port']}" in COMPOSE["services"]["trainer"]["command"]
    [source] = jobs["peer"]["http_sd_configs"]
    assert source["url"] == "http://trainer:9400/targets"
    assert "--metrics-host=0.0.0.0" in COMPOSE["services"]["peer"]["command"], "else a trainer lists no peer"
    assert COMPOSE["services"]["peer"]["deploy"]["replicas"] >= 3


def test_prometheus_reads_the_rules_that_are_mounted() -> None:
    mounted = dict(volume.split(":")[:2] for volume in COMPOSE["services"]["prometheus"]["volumes"])
    assert PROMETHEUS["rule_files"] == [mounted["./prometheus-rules.yml"]]


@pytest.mark.parametrize("role", ["peer", "trainer"])
def test_the_roles_know_their_options(role: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    value = project["entry-points"][cli.COMMAND_GROUP][role]
    command: Any = importlib.metadata.EntryPoint(role, value, cli.COMMAND_GROUP).load()
    assert isinstance(command, click.Command)
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in COMPOSE["services"][role]["command"] if word.startswith("--")}
    assert used <= known


def test_the_run_of_compose_is_a_run() -> None:
    assert config.load(DOCKER / "run.toml").run.name == "compose"


def test_mounted_files_exist() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DOCKER / source).exists()


def test_the_image_is_not_root_and_gets_signals() -> None:
    assert re.search(r"^USER (?!root)\w+$", DOCKERFILE, re.MULTILINE)
    assert 'ENTRYPOINT ["tini", "--", "swarmflow"]' in DOCKERFILE
    assert "exec swarmflow peer" in " ".join(COMPOSE["services"]["peer"]["entrypoint"])
    for line in re.findall(r"^COPY (?!--from)(?:--chmod=\d+ )?(.+)$", DOCKERFILE, re.MULTILINE):
        assert all((ROOT / source).exists() for source in line.split()[:-1])
