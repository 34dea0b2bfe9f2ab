"""Text of other machines on a terminal and in a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.clean_text import TEXT_CHARS_MAX, clean, clean_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("step 3: loss 2.1 [bold]", "step 3: loss 2.1 [bold]"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("one\nswarmflow: another\r\ttab", "one\\nswarmflow: another\\r\\ttab"),
        ("\u202egnp.exe\u2066 \u200b", "\\u202egnp.exe\\u2066 \\u200b"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("\ud800\U000e0041", "\\ud800\\U000e0041"),
        ("größer, 東京, שלום, 👍", "größer, 東京, שלום, 👍"),
        ("e\u0301" + "a" + "\u0316" * 5, "e\u0301a\u0316\u0316" + "\\u0316" * 3),
    ],
)
def test_what_acts_is_shown_as_an_escape_and_all_else_as_it_is(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(st.text())
def test_whatever_it_is_it_becomes_one_line_that_a_terminal_only_shows(text: str) -> None:
    shown = clean(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    assert clean(shown) == shown


def test_a_text_without_end_is_cut() -> None:
    assert clean("\n" * 10**6) == "\\n" * TEXT_CHARS_MAX + "…"


def test_the_lines_of_a_traceback_are_indented() -> None:
    assert clean_lines("Traceback\n12:00:00 forged \x1b[1m") == "    Traceback\n    12:00:00 forged \\x1b[1m"
