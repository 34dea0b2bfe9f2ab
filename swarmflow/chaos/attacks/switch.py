"""How an attacker is switched on and off, and what it reports: files in its state folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_KIND: Final = "attack"
_SENT: Final = "sent.json"


def begin(folder: Path, kind: str) -> None:
    """Let the attacker with this state folder do this from now on."""
    (folder / _SENT).unlink(missing_ok=True)
    _write(folder / _KIND, kind)


def end(folder: Path) -> None:
    """Let it be honest again."""
    (folder / _KIND).unlink(missing_ok=True)


def current(folder: Path) -> str:
    """Return the kind of attack that is on; empty: none."""
    try:
        return (folder / _KIND).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def report(folder: Path, sent: Mapping[str, int]) -> None:
    """Write down what the attacker has sent so far, by name."""
    _write(folder / _SENT, json.dumps(sent))


def sent(folder: Path) -> dict[str, int]:
    """Return what an attacker has sent, by name."""
    try:
        found: dict[str, int] = json.loads((folder / _SENT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
