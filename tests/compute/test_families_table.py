"""Each family of families.toml learns in stages what transformers' model learns, or is refused for a listed reason."""

from __future__ import annotations

import re

import pytest

from tests.compute.families import LISTED, PAGE, TOLERANCE, outcome_of, tiny

EVERY_RUN = [name for name, entry in LISTED.items() if not entry.get("extended")]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in EVERY_RUN else pytest.mark.extended) for name in LISTED]
)
def test_it_learns_in_stages_what_transformers_learns(name: str) -> None:
    found = outcome_of(name)
    if reason := LISTED[name].get("refused"):
        assert re.search(rf"models of type {name} are not supported: .*{reason}", found.refusal)
        assert "\n" not in found.refusal
    else:
        assert not found.refusal
        assert found.loss_error < TOLERANCE
        assert found.gradient_error < TOLERANCE
    assert found.row(name) in PAGE.read_text(encoding="utf-8"), "run python -m tests.compute.families"


def test_the_page_lists_these_families_and_no_others() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(LISTED)


def test_nearly_all_of_the_families_of_every_run_are_equal() -> None:
    assert len(EVERY_RUN) == 51
    equal = [name for name in EVERY_RUN if "refused" not in LISTED[name]]
    assert len(equal) >= 48
    assert sum("num_experts_per_tok" in tiny(name) for name in equal) >= 5
