"""A report as text and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table

from swarmflow.simulator.measure import Meter
from swarmflow.simulator.report import DeviceUse, Iteration, SimulationReport

ROWS_MAX = 24  # more iterations than that are shown by the first and the last ones
KINDS_MAX = 12


def summary(report: SimulationReport, meter: Meter, cpu_s: float) -> Iterator[RenderableType]:
    """Return the parts of what is printed. cpu_s: CPU time of the simulation on this computer."""
    name = f"{report.scenario}, policy {report.policy}, seed {report.seed}"
    if not report.iterations:
        yield f"{name}: no iteration in {report.virtual_s:,.0f} s; {report.outcome}"
    else:
        yield name
        yield _iterations(report)
        yield from _in_all(report)
        yield "utilisation of the peers, by the stage that they served last:"
        yield _stages(report)
        yield "messages and bytes, after the warm-up:"
        yield _messages(report)
    violated = "; ".join(report.violations) or "none"
    yield from report.notes
    yield f"violations: {violated}; outcome: {report.outcome}"
    rate = report.virtual_s / cpu_s if cpu_s > 0 else 0.0
    decision_us = 1e6 * meter.decision_s / meter.decisions if meter.decisions else 0.0
    yield (
        f"simulated {report.virtual_s:,.0f} s in {cpu_s:,.1f} s of CPU ({_short(rate)} times real time)\n"
        f"{report.happened:,} events; a decision took {decision_us:.1f} us of CPU"
    )


def _iterations(report: SimulationReport) -> Table:
    columns = (
        "\n\n#",
        "\ntime\ns",
        "micro-\nbatch.\n/min",
        "\ncomm.\ns",
        "\nuseful\ns",
        "in\nvain\ns",
        "\nlost\ns",
        "\n\nuse",
        "\n\npeers",
        "died/\ncame/\nmoved",
        "\n\nMB",
    )
    table = _table(columns)
    rows = report.iterations
    shown = rows if len(rows) <= ROWS_MAX else (*rows[: ROWS_MAX // 2], None, *rows[-ROWS_MAX // 2 :])
    for row in shown:
        table.add_row(*(["..."] * len(columns) if row is None else _cells(row)))
    return table


def _cells(row: Iteration) -> list[str]:
    return [
        str(row.number) if row.measured else f"({row.number})",
        _short(row.seconds),
        _short(row.microbatches_a_minute),
        _short(row.communication_s),
        _short(row.useful_s),
        _short(row.wasted_s),
        _short(row.lost_s),
        f"{row.utilisation:.0%}",
        _short(row.peers),
        "/".join(_short(count) for count in (row.deaths, row.joins, row.moves)),
        _short(row.wire_bytes / 1e6),
    ]


def _table(columns: Sequence[str]) -> Table:
    """Return a table for a terminal of 80 columns: headers of several lines, and only space between columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _short(value: float) -> str:
    """Return three digits and a unit: five characters at most."""
    for unit in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.{_decimals(value, unit)}f}{unit}"
        value /= 1000
    return f"{value:.0f}T"


def _decimals(value: float, unit: str) -> int:
    """Return so many that there are three digits; 0 for a small whole number."""
    if not unit and value == int(value):
        return 0
    return 2 if value < 9.995 else 1 if value < 99.95 else 0


def _in_all(report: SimulationReport) -> Iterator[str]:
    if not report.measured:
        yield "no iteration after the warm-up"
        return
    yield f"in all, {len(report.measured)} iterations after the warm-up (mean ± standard deviation):"
    seconds, minutes = report.over(lambda row: row.seconds), report.over(lambda row: row.minutes_a_microbatch)
    per_minute = report.over(lambda row: row.microbatches_a_minute)
    network_s = report.over(lambda row: row.communication_s)
    yield f"  {seconds[0]:,.2f} ± {seconds[1]:,.2f} s an iteration"
    yield f"  {minutes[0]:.4g} ± {minutes[1]:.2g} minutes a microbatch"
    yield f"  {per_minute[0]:,.2f} ± {per_minute[1]:,.2f} microbatches a minute"
    yield f"  {report.over(lambda row: row.microbatches)[0]:.2f} microbatches an iteration"
    yield f"  {network_s[0]:,.2f} ± {network_s[1]:,.2f} s on the network a microbatch, all hops together"
    wasted, lost, twice = report.waste()
    yield f"  computing in vain: {wasted:.2%} by living peers, {lost:.2%} lost with the dead"
    if twice:
        yield f"  forward passes done twice, for want of memory for the graph: {twice:.2%}"
    if (bottleneck := report.bottleneck) is not None:
        shares = sorted(bottleneck.shares.items(), key=lambda item: -item[1])
        busiest = f"; the busiest peer is one of stage {bottleneck.stage}" if bottleneck.stage >= 0 else ""
        yield f"  bottleneck: {shares[0][0]}, {shares[0][1]:.0%} of the time{busiest}"
        yield "  the rest: " + ", ".join(f"{part} {share:.0%}" for part, share in shares[1:])


def _stages(report: SimulationReport) -> Table:
    """The use of the devices of each stage."""
    table = _table(("stage", "peers", "least", "mean", "most"))
    by_stage: dict[int, list[DeviceUse]] = {}
    for device in report.devices:
        by_stage.setdefault(device.stage, []).append(device)
    for stage, devices in sorted(by_stage.items()):
        uses = [device.utilisation for device in devices]
        seconds = sum(device.seconds for device in devices)
        mean = sum(device.busy_s for device in devices) / seconds if seconds > 0 else 0.0
        name = str(stage) if stage >= 0 else "none"
        table.add_row(name, str(len(devices)), f"{min(uses):.1%}", f"{mean:.1%}", f"{max(uses):.1%}")
    return table


def _messages(report: SimulationReport) -> Table:
    seconds = report.peer_seconds
    columns = ("\nmessage", "\nnumber", "\nMB", "a second\nand peer", "bytes a second\nand peer")
    table = _table(columns)
    kinds = sorted(report.messages, key=lambda kind: -report.wire_bytes[kind])
    groups = [(kind, [kind]) for kind in kinds[:KINDS_MAX]]
    if kinds[KINDS_MAX:]:
        groups.append((f"{len(kinds) - KINDS_MAX} others", kinds[KINDS_MAX:]))
    for name, members in [*groups, ("all", kinds)]:
        number = sum(report.messages[kind] for kind in members)
        size_bytes = sum(report.wire_bytes[kind] for kind in members)
        size = f"{size_bytes / 1e6:,.{2 if size_bytes < 1e11 else 0}f}"  # of 80 columns
        each = (number / seconds, size_bytes / seconds) if seconds > 0 else (0.0, 0.0)
        table.add_row(name, f"{number:,}", size, f"{each[0]:.3g}", f"{each[1]:,.0f}")
    return table
