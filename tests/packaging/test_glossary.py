"""The glossary's names are the code's."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_class_in_the_glossary_exists() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([A-Z][A-Za-z]+)`", text))
    classes = {
        node.name
        for path in (ROOT / "swarmflow").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    assert len(named) > 40
    assert named - classes == set()
