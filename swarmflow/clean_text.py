"""Text of other processes made harmless for terminals and logs: names and reasons come from strangers' machines."""

from __future__ import annotations

import unicodedata

# Control characters (escape sequences begin with one), formats (they turn the direction of text), surrogates and such.
_HARMFUL = frozenset(("Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"))


def clean(text: str) -> str:
    """Return a text in which every character that is not printed as itself stands as its code: `\\x1b`, `\\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if _harmless(character) else _escaped(character) for character in text)


def _harmless(character: str) -> bool:
    return unicodedata.category(character) not in _HARMFUL


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
