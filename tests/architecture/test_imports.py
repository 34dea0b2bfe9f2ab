"""Who may import whom, and how large a file may be: the design's rules, read from the syntax trees."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROLES = ("peers", "trainers")
FILES = sorted(path for top in ("swarmflow", *ROLES) for path in (ROOT / top).rglob("*.py"))
LINES_MAX = 450
GLOBAL_RANDOM = "global random numbers: take a random.Random as an argument"
DETERMINISTIC = ("swarmflow/core/", "swarmflow/simulator/")
CLOCKS_AND_EFFECTS = {"asyncio", "multiprocessing", "os", "selectors", "socket", "subprocess", "threading", "time"}
UNSAFE = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every dotted name imported anywhere in `tree`, with its line; `from a import b` counts as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def global_random(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every use of the module `random` but for its class Random, with its line."""
    modules = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "random"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules and node.attr != "Random":
            yield f"random.{node.attr}", node.lineno


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def deterministic(name: str) -> str | None:
    """Why core and simulator may not import this standard module, if they may not."""
    if within(name, *CLOCKS_AND_EFFECTS):
        return "reads a clock or acts"
    if name.startswith("random.") and name != "random.Random":
        return GLOBAL_RANDOM
    if within(name, "datetime") or name in ("uuid.uuid4", "uuid.uuid1", "secrets"):
        return "reads a clock or the system's random numbers"
    return None


def core_rule(name: str) -> str | None:
    if within(name, "swarmflow.core", "swarmflow.errors"):
        return None
    if within(name, "numpy") and not within(name, "numpy.random"):
        return None
    return deterministic(name) if is_standard(name) else "core imports the standard library, numpy and core only"


def simulator_rule(name: str) -> str | None:
    if within(
        name,
        "swarmflow.core",
        "swarmflow.simulator",
        "swarmflow.planning",
        "swarmflow.errors",
        "swarmflow.config_check",
    ):
        return None
    return deterministic(name) if is_standard(name) else "the simulator imports the standard library and core only"


def planning_rule(name: str) -> str | None:
    allowed = ("swarmflow.planning", "swarmflow.core", "swarmflow.errors", "numpy", "networkx")
    if within(name, *allowed) or is_standard(name):
        return None
    return "planning imports numpy, networkx and core only"


def compute_rule(name: str) -> str | None:
    return "compute does not know the network" if within(name, "swarmflow.runtime", "hivemind", "asyncio") else None


def library_rule(name: str) -> str | None:
    return "the library never imports a role" if within(name, *ROLES) else None


def role_rule(role: str) -> Callable[[str], str | None]:
    others = tuple(other for other in ROLES if other != role)
    return lambda name: "roles never import each other" if within(name, *others) else None


RULES: dict[str, list[Callable[[str], str | None]]] = {
    "swarmflow": [library_rule],
    "swarmflow/core": [core_rule],
    "swarmflow/simulator": [simulator_rule],
    "swarmflow/planning": [planning_rule],
    "swarmflow/compute": [compute_rule],
    **{role: [role_rule(role)] for role in ROLES},
}


def broken_rules(path: Path, source: str) -> list[str]:
    """Each import in `source`, a file at `path` (relative), that a rule forbids, as `path:line: name: reason`."""
    tree = ast.parse(source)
    rules = [rule for folder, some in RULES.items() if path.as_posix().startswith(folder + "/") for rule in some]
    found = []
    for name, line in imports(tree):
        reasons = [reason for rule in rules if (reason := rule(name)) is not None]
        if within(name, *UNSAFE):
            reasons.append("runs code that is hidden in data")
        found += [f"{path}:{line}: {name}: {reason}" for reason in reasons]
    if path.as_posix().startswith(DETERMINISTIC):
        found += [f"{path}:{line}: {name}: {GLOBAL_RANDOM}" for name, line in global_random(tree)]
    return found


def unsafe_loads(tree: ast.AST) -> Iterator[int]:
    """The lines of every `torch.load(...)` that does not say `weights_only=True`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "torch.load":
            continue
        if "weights_only=True" not in [ast.unparse(keyword) for keyword in node.keywords]:
            yield node.lineno


RUN_A_LOOP = {"asyncio.run", "asyncio.Runner", "uvloop.run", "run_until_complete", "run_forever"}


def own_loops(tree: ast.Module) -> Iterator[int]:
    """The lines that run an event loop, but for those of a program: what stands under `if __name__ == "__main__"`."""
    for statement in tree.body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'":
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and not RUN_A_LOOP.isdisjoint((ast.unparse(node), node.attr)):
                yield node.lineno
            elif isinstance(node, ast.ImportFrom):
                yield from (node.lineno for alias in node.names if f"{node.module}.{alias.name}" in RUN_A_LOOP)


def runs_at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported: all but what stands in functions or under TYPE_CHECKING."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        if isinstance(node, ast.stmt):
            yield node
        waiting += ast.iter_child_nodes(node)


every_file = pytest.mark.parametrize("path", [path.relative_to(ROOT) for path in FILES], ids=str)


@every_file
def test_imports_keep_the_rules(path: Path) -> None:
    assert broken_rules(path, (ROOT / path).read_text(encoding="utf-8")) == []


@every_file
def test_no_file_holds_more_than_one_subject_can_fill(path: Path) -> None:
    assert len((ROOT / path).read_text(encoding="utf-8").splitlines()) <= LINES_MAX


@every_file
def test_torch_load_never_runs_code(path: Path) -> None:
    assert list(unsafe_loads(ast.parse((ROOT / path).read_text(encoding="utf-8")))) == []


COMMANDS = [
    path.relative_to(ROOT)
    for path in FILES
    if path.name == "command.py" or (path.parent.name == "commands" and path.name != "__init__.py")
]


@pytest.mark.parametrize("path", COMMANDS, ids=str)
def test_commands_load_only_click(path: Path) -> None:
    """`swarmflow --help` imports them all, and must not load torch or hivemind."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    names = {
        name.partition(".")[0]
        for node in runs_at_import(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name, _ in imports(node)
    }
    assert [name for name in names if name != "click" and not is_standard(name)] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("swarmflow/core/a.py", "import torch"),
        ("swarmflow/core/a.py", "def f():\n    import time"),
        ("swarmflow/core/a.py", "from random import choice"),
        ("swarmflow/core/a.py", "import random\nrandom.shuffle([])"),
        ("swarmflow/simulator/a.py", "import random as r\nr.seed(1)"),
        ("swarmflow/simulator/a.py", "import random\nx = random.SystemRandom()"),
        ("swarmflow/core/a.py", "from swarmflow.runtime import links"),
        ("swarmflow/core/a.py", "from swarmflow import runtime"),
        ("swarmflow/simulator/a.py", "import asyncio"),
        ("swarmflow/simulator/a.py", "import numpy as np"),
        ("swarmflow/planning/a.py", "import torch"),
        ("swarmflow/compute/a.py", "from swarmflow.runtime.links import Links"),
        ("swarmflow/cli.py", "import peers.command"),
        ("swarmflow/runtime/a.py", "from trainers import data"),
        ("peers/process.py", "from trainers.data import Corpus"),
        ("trainers/process.py", "import peers"),
        ("peers/process.py", "import pickle"),
    ],
)
def test_the_rules_see_what_they_forbid(path: str, source: str) -> None:
    assert len(broken_rules(Path(path), source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("swarmflow/core/a.py", "from random import Random\nimport heapq\nfrom swarmflow.core.types import Ref"),
        ("swarmflow/simulator/a.py", "from swarmflow.core import peer"),
        ("swarmflow/simulator/a.py", "import random\nrng = random.Random(7)\nrng.random()"),
        ("swarmflow/compute/a.py", "import torch\nfrom swarmflow.errors import FrameError"),
        ("peers/process.py", "from swarmflow.runtime.metrics import Metrics\nimport time"),
    ],
)
def test_the_rules_allow_what_the_design_allows(path: str, source: str) -> None:
    assert broken_rules(Path(path), source) == []


def test_unsafe_loads_are_seen() -> None:
    source = "torch.load(f)\ntorch.load(f, weights_only=False)\ntorch.load(f, weights_only=True)"
    assert list(unsafe_loads(ast.parse(source))) == [1, 2]


def test_asynchronous_tests_leave_the_loop_to_pytest() -> None:
    """Only then does each of them have a deadline and the loop of the processes (tests/conftest.py)."""
    files = {path: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("*.py")}
    assert [f"{path.relative_to(ROOT)}:{line}" for path, tree in files.items() for line in own_loops(tree)] == []


def test_the_loop_of_a_test_is_seen_and_that_of_a_child_program_allowed() -> None:
    source = "import asyncio, uvloop\nasyncio.run(f())\nwith asyncio.Runner() as r: pass\nfrom uvloop import run\n"
    programs = "CHILD = 'asyncio.run(main())'\nif __name__ == '__main__':\n    uvloop.run(main())\n"
    assert list(own_loops(ast.parse(source + programs + "loop.run_until_complete(f())"))) == [2, 3, 4, 8]


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for top in ("swarmflow", *ROLES, "benchmarks", "experiments"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_library_in_use_is_a_declared_dependency() -> None:
    """What another dependency happens to bring may vanish with its next version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[<>=!\[; ]", line)[0].replace("-", "_") for line in project["dependencies"]}
    used = {
        name.partition(".")[0]
        for path in FILES
        for name, _ in imports(ast.parse(path.read_text(encoding="utf-8")))
        if not is_standard(name) and not within(name, "swarmflow", *ROLES)
    }
    assert used - declared == set()
