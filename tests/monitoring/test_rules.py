"""The rules: `promtool` tries each of them, and they ask for series that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from swarmflow.monitoring.families import FAMILIES
from swarmflow.monitoring.panels import DASHBOARDS
from swarmflow.monitoring.prometheus_rules import ALERTS, RECORDINGS
from tests.monitoring.exposed import exposed_series

PROMTOOL = shutil.which("promtool")
ROOT = Path(__file__).parents[2]
RULES = ROOT / "docker" / "prometheus-rules.yml"
TRIALS = Path(__file__).with_name("rules.test.yml")
PANELS = {
    f"{dashboard.name}: {panel.title}: {legend}": expr
    for dashboard in DASHBOARDS
    for panel in dashboard.panels
    for legend, expr in panel.queries.items()
}
EXPRESSIONS = {rule.name: rule.expr for rule in (*RECORDINGS, *ALERTS)} | PANELS


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here; on Debian: apt-get install prometheus")
@pytest.mark.extended
def test_promtool_tries_every_rule() -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "test", "rules", str(TRIALS)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_seen_to_fire_and_to_be_silent() -> None:
    trials = [
        trial
        for group in yaml.safe_load(TRIALS.read_text(encoding="utf-8"))["tests"]
        for trial in group.get("alert_rule_test", ())
    ]
    fires = {trial["alertname"] for trial in trials if trial.get("exp_alerts")}
    silent = {trial["alertname"] for trial in trials if not trial.get("exp_alerts")}
    assert fires == silent == {alert.name for alert in ALERTS}


def test_each_recording_is_tried() -> None:
    groups = yaml.safe_load(TRIALS.read_text(encoding="utf-8"))["tests"]
    tried = {trial["expr"] for group in groups for trial in group.get("promql_expr_test", ())}
    assert tried == {recording.name for recording in RECORDINGS}


def test_the_file_has_the_rules_of_the_table() -> None:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [rule["record"] for rule in rules if "record" in rule] == [each.name for each in RECORDINGS]
    assert [rule["alert"] for rule in rules if "alert" in rule] == [each.name for each in ALERTS]
    assert {rule["expr"] for rule in rules} == {each.expr for each in (*RECORDINGS, *ALERTS)}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_asks_for_what_exists(name: str) -> None:
    expr = EXPRESSIONS[name]
    series = exposed_series() | {"up": {"job"}, "ALERTS": {"alertname"}}
    recorded = {recording.name for recording in RECORDINGS}
    names = set(re.findall(r"\b(?:swarmflow[\w:]*|process_\w+|up|ALERTS)\b", expr))
    assert names
    assert names <= recorded | set(series)
    target = {"instance", "job", "peer"}  # labels of Prometheus' own targets
    known = target.union(*(series.get(each, set()) for each in names), {"stage", "kind"} if names & recorded else ())
    labels = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expr) for label in group.split(",")}
    labels |= set(re.findall(r"(\w+)=~?\"", expr))
    assert labels <= known


def test_every_metric_of_the_swarm_has_a_name_of_its_own() -> None:
    assert len({family.full_name for family in FAMILIES}) == len(FAMILIES)
