"""Text of other processes made harmless for terminals and logs: names and reasons come from strangers' machines."""

from __future__ import annotations

import unicodedata

TEXT_CHARS_MAX = 10_000  # of one line; a longer one is cut
_MARKS_MAX = 2  # combining marks in a row: no writing needs many more, and a pile of them covers other lines


def clean(text: str) -> str:
    """Return a text in one line in which each character that acts instead of being shown is written as an escape.

    These are control characters (of escape sequences, new lines), marks of direction, invisible characters and
    surrogates: `\\x1b`, `\\u202e`. Letters of all scripts, symbols and plain spaces stay as they are.
    """
    if text.isascii() and text.isprintable() and len(text) <= TEXT_CHARS_MAX:
        return text
    shown: list[str] = []
    marks = 0
    for character in text[:TEXT_CHARS_MAX]:
        marks = marks + 1 if unicodedata.combining(character) else 0
        shown.append(character if character.isprintable() and marks <= _MARKS_MAX else _escape(character))
    return "".join(shown) + ("…" if len(text) > TEXT_CHARS_MAX else "")


def clean_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback, each of them clean and indented.

    The indent keeps a text that has line breaks in it from passing for further lines of a log.
    """
    return "\n".join(f"    {clean(line)}" for line in text.split("\n"))


def _escape(character: str) -> str:
    number = ord(character)
    if character in "\n\r\t":
        return repr(character)[1:-1]
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
