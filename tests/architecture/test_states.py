"""The page of state diagrams is as the transition tables of the core draw it."""

from __future__ import annotations

from tests.architecture.states import PAGE, machines, page


def test_the_page_is_generated_from_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.architecture.states"


def test_an_event_is_a_label_that_mermaid_can_read() -> None:
    """A colon or a semicolon would end the label."""
    events = [event for machine in machines() for row in machine.table.values() for event in row.values()]
    assert [event for event in events if set(event) & set(":;")] == []
