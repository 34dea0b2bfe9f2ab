"""The nearest word to a misspelt one: case does not matter, and nothing is suggested for a word that is like none."""

from __future__ import annotations

import pytest

from swarmflow.suggestions import did_you_mean, nearest


@pytest.mark.parametrize(
    ("word", "options", "expected"),
    [
        ("shortst", ("shortest", "iwrr", "flow"), "shortest"),
        ("AdamW", ("adamw", "lamb", "sgd"), "adamw"),
        ("LLAMA", ("llama", "gpt2"), "llama"),
        ("llama", ("LLaMA",), "LLaMA"),
        ("gzip", ("blockwise8", "fp16", "none"), None),
        ("", ("a",), None),
        ("x", (), None),
    ],
)
def test_the_nearest_option_is_found(word: str, options: tuple[str, ...], expected: str | None) -> None:
    assert nearest(word, options) == expected
    assert did_you_mean(word, options) == ("" if expected is None else f" (did you mean {expected}?)")


def test_a_value_that_is_no_string_is_like_nothing() -> None:
    assert did_you_mean(["adamw"], ("adamw",)) == ""
