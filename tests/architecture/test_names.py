"""Names that were given up for the field's: none of them comes back as the name of anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.packages import ROOT

FILES = sorted(
    path
    for top in ("swarmflow", "peers", "trainers", "benchmarks", "experiments")
    for path in (ROOT / top).rglob("*.py")
)
# docs/glossary.md says what stands in their place.
CLASSES = """
    Words Word Say Takers Outbox Entry Space Hops Standing Following Naming Named Open Reopen Reign Service Feeder
    Estate Lead Known Way Carry Carried Beyond Room Passed Relieve Gone Beat Sure Got Described
"""
MODULES = "words takers outbox space hopping standing following naming succession rules rivals"
WORDS = """
    said heard told living everybody strays heir heirs estate lean beyond way ways detour detours hands hopeless doubts
    came rivals
"""  # as a whole name, or as one of those that underscores join


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Return every name that a module gives to something, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.alias(asname=str(asname)):
                yield asname, node.lineno


def retired(name: str) -> bool:
    """Return whether a name is retired, as a whole or by one of its words."""
    return name.lstrip("_") in CLASSES.split() or not set(WORDS.split()).isdisjoint(name.lower().split("_"))


def test_no_name_is_a_retired_one() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in FILES
        for name, line in names(ast.parse(path.read_text(encoding="utf-8")))
        if retired(name)
    ]
    assert found == []


def test_no_module_has_a_retired_name() -> None:
    retired_modules = set(MODULES.split())
    assert [path for path in FILES if not retired_modules.isdisjoint((path.stem, path.parent.name))] == []


def test_a_retired_name_is_seen_wherever_it_is_given() -> None:
    given = (
        "class Outbox: ...",
        "def f(heirs): _told = 1; self.ways_s, leaned = 1, 2",
        "import a as hands",
        "came_late = 3",
    )
    source = "\n".join(given)
    assert [name for name, _ in names(ast.parse(source)) if retired(name)] == [
        "Outbox",
        "hands",
        "came_late",
        "heirs",
        "_told",
        "ways_s",
    ]
