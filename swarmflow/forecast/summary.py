"""The report of a simulation as text and tables, for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table

from swarmflow.simulator.measure import Meter
from swarmflow.simulator.report import DeviceUse, Iteration, SimulationReport

ROWS_MAX = 24  # of more iterations, the first and the last half as many are shown
KINDS_MAX = 12  # kinds of messages, those with the most bytes; the others share a row


def summary(report: SimulationReport, meter: Meter, cpu_s: float) -> Iterator[RenderableType]:
    """Yield the parts to print. meter: has the CPU time of decisions. cpu_s: CPU time of the whole simulation."""
    name = f"{report.scenario}, policy {report.policy}, seed {report.seed}"
    if not report.iterations:
        yield f"{name}: no iteration was finished in {report.virtual_s:,.0f} s; {report.outcome}"
    else:
        yield name
        yield _iterations(report)
        yield _LEGEND
        yield from _averages(report)
        yield "utilisation of the peers, by the last stage that each served:"
        yield _stages(report)
        yield "messages and bytes, after the warm-up:"
        yield _messages(report)
    violated = "; ".join(report.violations) or "none"
    yield from report.notes
    yield f"violations: {violated}; outcome: {report.outcome}"
    speedup = report.virtual_s / cpu_s if cpu_s > 0 else 0.0
    decision_us = 1e6 * meter.decision_s / meter.decisions if meter.decisions else 0.0
    yield (
        f"simulated {report.virtual_s:,.0f} s in {cpu_s:,.1f} s of CPU ({_short(speedup)} s in one)\n"
        f"{report.happened:,} events; a decision of a machine took {decision_us:.1f} us of CPU"
    )


# The columns of the table of iterations: the header, which ends on the bottom line of three, and the cell.
_COLUMNS: tuple[tuple[str, Callable[[Iteration], str]], ...] = (
    ("\n\n#", lambda row: str(row.number) if row.measured else f"({row.number})"),
    ("\ntime\ns", lambda row: _short(row.seconds)),
    ("micro-\nbatch.\n/min", lambda row: _short(row.microbatches_a_minute)),
    ("\ncomm.\ns", lambda row: _short(row.communication_s)),
    ("\nuseful\ns", lambda row: _short(row.useful_s)),
    ("in\nvain\ns", lambda row: _short(row.wasted_s)),
    ("\nlost\ns", lambda row: _short(row.lost_s)),
    ("\n\nused", lambda row: f"{row.utilisation:.0%}"),
    ("\n\npeers", lambda row: _short(row.peers)),
    ("died/\ncame/\nmoved", lambda row: "/".join(_short(count) for count in (row.deaths, row.joins, row.moves))),
    ("\n\nMB", lambda row: _short(row.wire_bytes / 1e6)),
)
_LEGEND = (
    "(#): before the end of the warm-up, not in the means. comm.: in transit, a\n"
    "microbatch, all hops together. useful, in vain, lost: seconds of computing of\n"
    "all peers that were committed, that were not, that died with their peers.\n"
    "used: the share of the peers' time in which they computed."
)


def _iterations(report: SimulationReport) -> Table:
    table = _table([header for header, _ in _COLUMNS])
    rows = report.iterations
    half = ROWS_MAX // 2
    first, last = (rows, rows[:0]) if len(rows) <= ROWS_MAX else (rows[:half], rows[-half:])
    for row in first:
        table.add_row(*(cell(row) for _, cell in _COLUMNS))
    if last:
        table.add_row(*("..." for _ in _COLUMNS))
    for row in last:
        table.add_row(*(cell(row) for _, cell in _COLUMNS))
    return table


def _table(columns: Sequence[str]) -> Table:
    """Return a table without lines between columns, whose headers may have several lines."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _short(value: float) -> str:
    """Return a number of at least 0 with three digits and a prefix of the SI: 37, 4.20, 128, 1.05k."""
    for prefix in ("", "k", "M", "G"):
        if value < 999.5:  # a larger one would be rounded to 1000
            return f"{value:.{_decimals(value, whole=not prefix)}f}{prefix}"
        value /= 1000
    return f"{value:.0f}T"


def _decimals(value: float, whole: bool) -> int:
    """Return the number of decimals that gives three digits. whole: a whole number has none."""
    if whole and value == int(value):
        return 0
    return 2 if value < 9.995 else 1 if value < 99.95 else 0  # 9.995 is shown as 10.0, 99.95 as 100


def _averages(report: SimulationReport) -> Iterator[str]:
    if not report.measured:
        yield "no iteration after the warm-up"
        return
    yield f"in all, {len(report.measured)} iterations after the warm-up (mean ± standard deviation):"
    for unit, value in _MEANS:
        mean, deviation = report.over(value)
        yield f"  {mean:,.4g} ± {deviation:,.2g} {unit}"
    wasted, lost, twice = report.waste()
    yield f"  of all computing, {wasted:.2%} was in vain on living peers, {lost:.2%} lost by deaths"
    if twice:
        yield f"  {twice:.2%} was forward passes done again, for lack of memory for their graphs"
    if (bottleneck := report.bottleneck) is not None:
        shares = sorted(bottleneck.shares.items(), key=lambda item: -item[1])
        busiest = f"; the busiest peer is one of stage {bottleneck.stage}" if bottleneck.stage >= 0 else ""
        yield f"  bottleneck: {shares[0][0]}, {shares[0][1]:.0%} of the time{busiest}"
        if shares[1:]:
            yield "  the rest: " + ", ".join(f"{part} {share:.0%}" for part, share in shares[1:])


# Minutes per microbatch, as in GWTF's tables, and the inverse, whose mean is not the inverse of the former's mean.
_MEANS: tuple[tuple[str, Callable[[Iteration], float]], ...] = (
    ("s an iteration", lambda row: row.seconds),
    ("minutes a microbatch", lambda row: row.minutes_a_microbatch),
    ("microbatches a minute", lambda row: row.microbatches_a_minute),
    ("microbatches an iteration", lambda row: row.microbatches),
    ("s on the network a microbatch, all hops together", lambda row: row.communication_s),
)


def _stages(report: SimulationReport) -> Table:
    """Return least, mean and most utilisation of the peers of each stage; the mean is weighted by their time alive."""
    table = _table(("stage", "peers", "least", "mean", "most"))
    by_stage: dict[int, list[DeviceUse]] = {}
    for device in report.devices:
        by_stage.setdefault(device.stage, []).append(device)
    for stage, devices in sorted(by_stage.items()):
        uses = [device.utilisation for device in devices]
        seconds = sum(device.seconds for device in devices)
        mean = sum(device.busy_s for device in devices) / seconds if seconds > 0 else 0.0
        name = str(stage) if stage >= 0 else "none"  # never granted one
        table.add_row(name, str(len(devices)), f"{min(uses):.1%}", f"{mean:.1%}", f"{max(uses):.1%}")
    return table


def _messages(report: SimulationReport) -> Table:
    """Return number and bytes of the messages by kind, those with the most bytes first."""
    seconds = report.peer_seconds  # in which peers were alive, summed over them
    columns = ("\nmessage", "\nnumber", "\nMB", "per s\nand peer", "bytes per s\nand peer")
    table = _table(columns)
    kinds = sorted(report.messages, key=lambda kind: -report.wire_bytes[kind])
    groups = [(kind, [kind]) for kind in kinds[:KINDS_MAX]]
    if kinds[KINDS_MAX:]:
        groups.append((f"{len(kinds) - KINDS_MAX} others", kinds[KINDS_MAX:]))
    for name, members in [*groups, ("all", kinds)]:
        number = sum(report.messages[kind] for kind in members)
        size_bytes = sum(report.wire_bytes[kind] for kind in members)
        size = f"{size_bytes / 1e6:,.{2 if size_bytes < 1e11 else 0}f}"  # else the row is wider than 80 columns
        per_second = (number / seconds, size_bytes / seconds) if seconds > 0 else (0.0, 0.0)
        table.add_row(name, f"{number:,}", size, f"{per_second[0]:.3g}", f"{per_second[1]:,.0f}")
    return table
