"""Writes what follows from the code: the rules, the dashboards, and the tables of docs/metrics.md.

`make generate` runs it at the top of a checkout; a test fails where a file is not as it would be written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import Metric

from swarmflow.monitoring.families import FAMILIES, Family
from swarmflow.monitoring.panels import DASHBOARDS, Dashboard, Panel
from swarmflow.monitoring.prometheus_rules import ALERTS, RECORDINGS, rules_file
from swarmflow.runtime.execution.metrics import Labelled, Metrics

RULES = Path("docker/prometheus-rules.yml")
GRAFANA = Path("docker/grafana/dashboards")
GUIDE = Path("docs/metrics.md")
SOURCE: dict[str, str] = {"type": "prometheus", "uid": "prometheus"}
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
_SUFFIXES = {"counter": "_total", "info": "_info"}
_TABLE = re.compile(r"(<!-- (\w+): written by `make generate` -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def generated(root: Path) -> dict[Path, str]:
    """Return the text of every generated file of a checkout, by its path below the root."""
    files = {RULES: rules_file(), GUIDE: guide((root / GUIDE).read_text(encoding="utf-8"))}
    for dashboard in DASHBOARDS:
        text = msgspec.json.format(msgspec.json.encode(dashboard_of(dashboard)), indent=1)
        files[GRAFANA / f"{dashboard.name}.json"] = text.decode() + "\n"
    return files


def guide(text: str) -> str:
    """Return docs/metrics.md with its tables as they follow from the code."""
    tables = {
        "process": process_table(),
        "swarm": swarm_table(),
        "recordings": recording_table(),
        "alerts": alert_table(),
        "panels": panel_table(),
    }
    return _TABLE.sub(lambda found: f"{found[1]}\n{tables[found[2]]}\n\n{found[4]}", text)


def process_table() -> str:
    """Return the metrics of a process, as rows of Markdown."""
    metrics = Metrics()
    labels = {f"swarmflow_{name}": value.labels for name, value in vars(metrics).items() if isinstance(value, Labelled)}
    own = [family for family in metrics.registry.collect() if family.name.startswith("swarmflow_")]
    rows = [_metric(_exposed(each), each.type, labels.get(each.name, ()), each.documentation) for each in own]
    return _rows(("Name", "Kind", "Labels", "Meaning"), rows)


def swarm_table() -> str:
    """Return the metrics of the whole swarm, as rows of Markdown."""
    return _rows(("Name", "Kind", "Labels", "Meaning"), [_of_swarm(family) for family in FAMILIES])


def recording_table() -> str:
    """Return the recording rules, as rows of Markdown."""
    return _rows(("Series", "Meaning"), [(f"`{each.name}`", each.text) for each in RECORDINGS])


def alert_table() -> str:
    """Return the alerts, as rows of Markdown."""
    rows = [
        (
            f"`{each.name}`",
            each.severity,
            "at once" if each.after == "0s" else f"after {each.after}",
            _plain(each.summary),
            each.advice,
        )
        for each in ALERTS
    ]
    return _rows(("Alert", "Severity", "Fires", "What it says", "What to do"), rows)


def panel_table() -> str:
    """Return the panels of all dashboards, as rows of Markdown."""
    rows = [(each.name, panel.title, panel.text, _names(panel)) for each in DASHBOARDS for panel in each.panels]
    return _rows(("Dashboard", "Panel", "Shows", "From"), rows)


def dashboard_of(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard as Grafana reads it."""
    return {
        "uid": f"swarmflow-{dashboard.name}",
        "title": f"swarmflow: {dashboard.name}",
        "description": dashboard.text,
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "tags": ["swarmflow"],
        "links": [{"type": "dashboards", "tags": ["swarmflow"], "title": "swarmflow", "keepTime": True}],
        "templating": {"list": [_variable(dashboard)] if dashboard.variable else []},
        "annotations": {"list": []},
        "panels": [_panel(panel, number) for number, panel in enumerate(dashboard.panels)],
    }


def _variable(dashboard: Dashboard) -> dict[str, Any]:
    values = f"label_values({dashboard.of}, {dashboard.variable})"
    return {
        "name": dashboard.variable,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": values, "refId": "values"},
        "definition": values,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(panel: Panel, number: int) -> dict[str, Any]:
    return {
        "id": number + 1,
        "title": panel.title,
        "description": panel.text,
        "type": "timeseries",
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": WIDTH * (number % COLUMNS), "y": HEIGHT * (number // COLUMNS)},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for index, (legend, expr) in enumerate(panel.queries.items())
        ],
    }


def _of_swarm(family: Family) -> tuple[str, ...]:
    name = family.full_name + _SUFFIXES.get(family.kind, "")
    return _metric(name, family.kind, family.labels, family.text)


def _metric(name: str, kind: str, labels: tuple[str, ...], text: str) -> tuple[str, ...]:
    return f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), text


def _exposed(family: Metric) -> str:
    return family.name + _SUFFIXES.get(family.type, "")


def _names(panel: Panel) -> str:
    found = re.findall(r"\b(?:swarmflow[\w:]*|ALERTS)\b", " ".join(panel.queries.values()))
    return ", ".join(f"`{name}`" for name in dict.fromkeys(found))


def _plain(text: str) -> str:
    """Return an annotation without its templates: `{{ $labels.stage }}` is `STAGE`."""
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: f"`{found[1].upper()}`", text)


def _rows(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line).replace("|  |", "| |") + " |" for line in lines)


def main() -> None:
    """Write every generated file below the present folder."""
    root = Path.cwd()
    for path, text in generated(root).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
