"""A cut as text: its stages, who serves each, and the line for RUN.toml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table

from swarmflow.files import readable_size
from swarmflow.planning.cut import bottleneck
from swarmflow.plans.cutting import FoundCut


def cut_summary(found: FoundCut) -> Iterator[RenderableType]:
    """Yield the parts to print."""
    yield _stages(found)
    yield "memory: with one microbatch, and room for two more in passes. time: between two microbatches, of the slowest"
    yield "stage's."
    yield _gain(found)
    yield f"in RUN.toml: cut = {list(found.cut)}"
    yield "peers: --memory-limit of each, and --stage auto, or --stage N as above"


def cut_as_json(found: FoundCut) -> dict[str, Any]:
    """Return the cut, its stages and the comparison."""
    slowest, unit, edges = bottleneck(found.stages), found.pieces.unit, found.pieces.edges
    return {
        "cut": list(found.cut),
        "even_cut": list(found.even_cut) if found.even else None,
        "gain": found.gain,
        "stages": [
            {
                f"first_{unit}": edges[stage.first],
                f"{unit}s": edges[stage.stop] - edges[stage.first],
                "memory_bytes": memory_bytes,
                "machines": dict(zip((each.text for each in found.machines), stage.machines, strict=True)),
                "time": stage.seconds / slowest,
            }
            for stage, memory_bytes in zip(found.stages, found.memory_bytes, strict=True)
        ],
    }


def _stages(found: FoundCut) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    machines = (each.text for each in found.machines)
    for heading in ("stage", f"{found.pieces.unit}s", "parameters", "memory", *machines, "time"):
        table.add_column(heading, justify="right", overflow="fold")
    slowest, edges = bottleneck(found.stages), found.pieces.edges
    rows = zip(found.stages, found.parameters, found.memory_bytes, strict=True)
    for number, (stage, parameters, memory_bytes) in enumerate(rows):
        table.add_row(
            str(number),
            f"{edges[stage.first]}-{edges[stage.stop] - 1}",
            f"{parameters:,}",
            readable_size(memory_bytes),
            *map(str, stage.machines),
            f"{stage.seconds / slowest:.2f}",
        )
    return table


def _gain(found: FoundCut) -> str:
    if found.gain is None:
        return "no even cut fits these machines"
    edges = list(found.even_cut)
    even = f"the best even cut, {edges} in {len(found.even)} stages" if edges else "one stage"
    return f"{found.gain:.2f} times as fast as {even}, by computing alone"
