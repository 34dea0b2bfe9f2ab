"""Rows as a table for a person: a line a metric, a column a policy, the paper's figure in brackets."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from experiments.common.rows import Row, distinct


def table(title: str, rows: Sequence[Row]) -> Table:
    """Mean ± standard deviation of each setting and metric, by policy."""
    policies = distinct(row.policy for row in rows)
    found = {(row.setting, row.metric, row.policy): row for row in rows}
    shown = Table(title=title, title_justify="left")
    shown.add_column("setting")
    shown.add_column("metric")
    for policy in policies:
        shown.add_column(policy, justify="right")
    for setting in distinct(row.setting for row in rows):
        for metric in distinct(row.metric for row in rows if row.setting == setting):
            shown.add_row(setting, metric, *(_cell(found.get((setting, metric, policy))) for policy in policies))
        shown.add_section()
    return shown


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    spread = f" ± {row.std:.3g}" if row.n > 1 else ""
    paper = "" if row.paper is None else f" ({row.paper:.4g})"
    return f"{row.mean:.4g}{spread}{paper}"


def show(title: str, rows: Sequence[Row]) -> None:
    """Print it, as wide as it needs to be where the output is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    console.print(table(title, rows))
