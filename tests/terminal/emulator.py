"""A terminal for the tests: what a person would see after all that a process has written, and what scrolled by."""

from __future__ import annotations

import io
import re

_TOKENS = re.compile(r"\x1b\[(?P<arguments>[\d;?]*)(?P<command>[A-Za-z])|(?P<character>[^\x1b])")
_CUT_OFF = re.compile(r"\x1b(\[[\d;?]*)?\Z")


class Terminal(io.StringIO):
    """Takes what is written to a terminal that is high enough never to scroll and as wide as any line."""

    def isatty(self) -> bool:
        return True

    @property
    def cursor_is_shown(self) -> bool:
        return self.getvalue().rfind("\x1b[?25h") >= self.getvalue().rfind("\x1b[?25l")

    def lines(self) -> list[str]:
        return seen(self.getvalue())


def seen(written: str) -> list[str]:
    """Return the lines that are on a terminal in the end. Raises ValueError for a sequence that is none of rich's."""
    lines, row, column = [""], 0, 0
    kept = (lines, row)
    written = _CUT_OFF.sub("", written)  # the rest of a sequence may not have been read yet
    position = 0
    while position < len(written):
        token = _TOKENS.match(written, position)
        if token is None:
            raise ValueError(f"no known sequence: {written[position : position + 12]!r}")
        position = token.end()
        character, command = token["character"], token["command"]
        if character == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif character == "\r":
            column = 0
        elif character is not None:
            lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
            column += 1
        elif command == "A":
            row = max(0, row - int(token["arguments"] or 1))
        elif command == "K":
            lines[row] = ""
        elif command == "H":
            row = column = 0
        elif token["arguments"] == "?1049" and command == "h":  # another screen
            kept, lines, row, column = (lines, row), [""], 0, 0
        elif token["arguments"] == "?1049":
            (lines, row), column = kept, 0
        elif command not in ("m", "h", "l"):
            raise ValueError(f"no known sequence: {token.group()!r}")
    return [line.rstrip() for line in lines]
