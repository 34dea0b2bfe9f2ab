"""The operators of a module as a table: what each takes, and where the graph can be cut."""

from __future__ import annotations

from swarmflow.compute.graphs.examine import ExaminedGraph

_FLOAT_BYTES = 4
_HEAD = ("number", "submodule", "operator", "result", "time", "GFLOP", "crosses before it")


def operator_lines(examined: ExaminedGraph) -> list[str]:
    """Return a line for each operator, under a heading; a star stands at the first of each stage."""
    total_s = sum(each.seconds for each in examined.workloads) or 1.0
    rows = [_HEAD]
    for number, (each, elements) in enumerate(zip(examined.workloads, examined.model.crossing, strict=True)):
        crosses = "no cut here" if elements < 0 else f"{_FLOAT_BYTES * elements:,} bytes"
        rows.append(
            (
                f"{'*' if number in (0, *examined.cut) else ''}{number}",
                each.where,
                each.name,
                "x".join(map(str, each.shape)),
                f"{each.seconds / total_s:.1%}",
                f"{each.gigaflops:.3g}",
                crosses if number else "",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
