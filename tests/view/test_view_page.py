"""docs/view.md and docs/status.md list what a view has."""

from __future__ import annotations

import re
from pathlib import Path

from swarmflow.core.pipeline.flight_table import FlightTable
from swarmflow.core.protocol.messages import PeerSummary
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.view.run_view import summary_of, view_of
from swarmflow.view.timeline import Timeline
from tests.core.samples import process
from tests.core.test_leader import Bench

DOCS = Path(__file__).parents[2] / "docs"


def listed(page: str, heading: str) -> set[str]:
    """The names in the first column of the table that follows a text."""
    table = (DOCS / page).read_text(encoding="utf-8").split(heading, 1)[1].split("|\n\n", 1)[0]
    return set(re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in table.splitlines() if line[:3] == "| `")))


def test_every_kind_of_event_is_listed() -> None:
    assert listed("view.md", "| `kind` | What happened |") - {"kind"} == set(EventKind)


def test_every_field_of_an_event_is_listed() -> None:
    timeline = Timeline()
    timeline.add(EventKind.OTHER, "", 0, 0.0)
    assert listed("view.md", "| Field | Type | Meaning |") == timeline.events[0].keys()


def test_every_field_of_a_view_is_listed() -> None:
    bench = Bench()
    bench.join(process("a"))
    view = view_of(bench.leader, FlightTable(), Timeline(), "name", "id", 0.0)
    [peer] = view["stages"][0]["peers"]
    assert listed("status.md", "| Field | Type | Meaning |") == view.keys()
    assert listed("status.md", "A peer in `stages[].peers`:") == peer.keys()
    assert listed("status.md", "A `summary`;") == summary_of(PeerSummary()).keys()
