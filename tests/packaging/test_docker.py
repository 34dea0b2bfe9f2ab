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
from swarmflow.runtime.execution.metrics import Metrics

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
DASHBOARD = json.loads((DOCKER / "grafana" / "dashboards" / "swarmflow.json").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
PROMETHEUS = yaml.safe_load((DOCKER / "prometheus.yml").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def exposed_series() -> dict[str, set[str]]:
    """Every series that a process exposes, with its labels, taken from a registry in which each has been touched."""
    metrics = Metrics()
    metrics.describe_process("peer", "name", "run")
    for value in vars(metrics).values():
        if hasattr(value, "labels") and isinstance(value.labels, tuple):
            value.at(*value.labels)
    series: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series


@pytest.mark.parametrize("query", QUERIES)
def test_each_panel_asks_for_what_exists(query: str) -> None:
    series = exposed_series()
    names = set(re.findall(r"\b(?:swarmflow|process)_\w+", query))
    assert names
    assert names <= set(series)
    labels = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
    known = {"job", "instance"}.union(*(series[name] for name in names))
    assert labels <= known


def test_the_dashboard_shows_what_was_promised() -> None:
    shown = " ".join(QUERIES)
    for name in ("tokens_total", "loss", "peers", "queue_length", "sent_bytes", "received_bytes", "retries_total"):
        assert f"swarmflow_{name}" in shown
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_grafana_finds_the_dashboard_and_its_source() -> None:
    provisioning = DOCKER / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text(encoding="utf-8"))
    providers = yaml.safe_load((provisioning / "dashboards" / "swarmflow.yaml").read_text(encoding="utf-8"))
    [source] = sources["datasources"]
    mounted = dict(volume.split(":")[:2] for volume in COMPOSE["services"]["grafana"]["volumes"])
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {source["uid"]}
    assert mounted["./grafana/dashboards"] == providers["providers"][0]["options"]["path"]
    assert source["url"] == "http://prometheus:9090"


def test_prometheus_finds_each_role_at_the_port_it_serves() -> None:
    jobs = {job["job_name"]: job["dns_sd_configs"][0] for job in PROMETHEUS["scrape_configs"]}
    assert {name: source["names"] for name, source in jobs.items()} == {"peer": ["peer"], "trainer": ["trainer"]}
    for name, source in jobs.items():
        assert f"--metrics-port={source['port']}" in COMPOSE["services"][name]["command"]
    assert COMPOSE["services"]["peer"]["deploy"]["replicas"] >= 3


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
