"""The walks through the code name files and functions that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "walks.md").read_text(encoding="utf-8")
NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
LINE = re.compile(rf"^\d+\. `([\w/]+\.py)`: ((?:`{NAME}`(?:, )?)+)", re.MULTILINE)
STEPS = [(file, name) for file, names in LINE.findall(PAGE) for name in re.findall(NAME, names)]


def test_every_numbered_line_is_a_step() -> None:
    assert len(LINE.findall(PAGE)) == len(re.findall(r"^\d+\. ", PAGE, re.MULTILINE))


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_a_step_names_what_there_is(file: str, name: str) -> None:
    body: list[ast.stmt] = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = [node for node in body if isinstance(node, ast.ClassDef | _FUNCTION) and node.name == part]
        assert found, f"{file} has no {name}"
        body = found[0].body


_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
