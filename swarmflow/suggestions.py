"""The nearest of the allowed words to a misspelt one: for errors about keys, values, options, commands and models."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SIMILARITY_MIN = 0.6


def nearest(word: str, options: Iterable[str]) -> str | None:
    """Return the option that is most like a misspelt word, or None where none is like it. Case does not matter."""
    by_key = {option.casefold(): option for option in options}
    found = difflib.get_close_matches(word.casefold(), list(by_key), n=1, cutoff=_SIMILARITY_MIN)
    return by_key[found[0]] if found else None


def did_you_mean(word: object, options: Iterable[str]) -> str:
    """Return ` (did you mean X?)` with the option nearest to a misspelt word; an empty string where there is none.

    word: what the user gave, which may be no string where it was read from a file.
    """
    found = nearest(word, options) if isinstance(word, str) else None
    return f" (did you mean {found}?)" if found is not None else ""
