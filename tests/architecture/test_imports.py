"""Who may import whom, and how large a file may be: the design's rules, read from the syntax trees."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.architecture.packages import PACKAGES, ROOT, Package, table, written

ROLES = ("peers", "trainers")
FILES = sorted(path for top in ("swarmflow", *ROLES) for path in (ROOT / top).rglob("*.py"))
LINES_MAX = 450
FUNCTION_LINES_MAX = 50
# Without the routers: what decides is to be read; a change that needs more says why. About 200 of them are the kinds of
# events, the summaries of peers and the repairs by name, for those who watch a run;
# 50 let a graph give way, and know the bytes of a piece; 450 begin a step while the one before is reduced; 350 place
# peers by what limits a step; 330 have versions written by their own peers; 140 let joins follow the run;
# 100 know which messages need the certificate of a trainer, and who has a vote; 400 certify versions, 250 know who
# handed which hop to whom, 240 believe no single
# peer, 100 choose the versions whose roots are reported, 50 believe no report of a hop to a candidate either, 230
# are GWTF's messages, 260 place newcomers by their links, 140 have a repair's gradient come beside its tensors, also
# where who has that gradient needs these tensors for it, 150 tell and weigh what a peer has to do, 400 place peers by a
# plan of their links, 70 keep them from stages for which they have no memory, 20 know which stages share weights, 10
# give every stage what travels with a microbatch, 20 ask more than two peers for a slot, and 130 open a step with the
# commit of the one before.
CORE_LINES_MAX = 19_200
METHODS_MAX = 25
ARGUMENTS_MAX = 10  # of a constructor
INTERNAL = r"ClassVar|init=False"
GLOBAL_RANDOM = "global random numbers: take a random.Random as an argument"
CLOCKS_AND_EFFECTS = {"asyncio", "multiprocessing", "os", "selectors", "socket", "subprocess", "threading", "time"}
UNSAFE = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}


@cache
def parsed(source: str) -> ast.Module:
    """The syntax tree of a file, which each rule reads."""
    return ast.parse(source)


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
    """Why what runs in virtual time may not import this standard module, if it may not."""
    if within(name, *CLOCKS_AND_EFFECTS):
        return "reads a clock or acts"
    if name.startswith("random.") and name != "random.Random":
        return GLOBAL_RANDOM
    if within(name, "datetime") or name in ("uuid.uuid4", "uuid.uuid1", "secrets"):
        return "reads a clock or the system's random numbers"
    return None


def owner(path: Path) -> str:
    """The package that a file (relative) belongs to; empty for the top of the library."""
    if path.parts[0] in ROLES:
        return path.parts[0]
    name = package_of("/".join(path.with_suffix("").parts[1:]))
    return "" if name in ("__init__", "__main__") else name


def package_of(place: str) -> str:
    """The innermost package that a file or folder of the library lies in; else the first part of its name."""
    parts = place.split("/")
    names = ("/".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in PACKAGES), parts[0])


def allows(rule: Package, package: str, imported: str) -> bool:
    """Whether a package may import another one: by its name, or by that of a folder around it, seen from outside."""
    around = [each for each in rule.imports if imported.startswith(f"{each}/") and not package.startswith(f"{each}/")]
    return imported in (package, *rule.imports) or bool(around)


def forbidden(package: str, name: str) -> str | None:
    """Why a package may not import this name, if it may not."""
    top, _, rest = name.partition(".")
    if within(name, *UNSAFE):
        return "runs code that is hidden in data"
    rule = PACKAGES.get(package, Package("", tuple(PACKAGES)))
    if is_standard(name):
        return deterministic(name) if rule.virtual else None
    imported = package_of(rest.replace(".", "/")) if top == "swarmflow" else top
    if top == "swarmflow" and imported not in PACKAGES:  # its version
        return None
    if rule.virtual and within(name, "numpy.random"):
        return GLOBAL_RANDOM
    if allows(rule, package, imported) or imported in rule.libraries:
        return None
    allowed = ", ".join((*rule.imports, *rule.libraries)) or "the standard library alone"
    return f"{package or 'swarmflow'} may import {allowed}"


def broken_imports(path: Path, source: str) -> Iterator[str]:
    """Each import of a file at `path` (relative) that its package may not have."""
    tree = parsed(source)
    for name, line in imports(tree):
        if (reason := forbidden(owner(path), name)) is not None:
            yield f"line {line}: {name}: {reason}"
    if owner(path) in PACKAGES and PACKAGES[owner(path)].virtual:
        yield from (f"line {line}: {name}: {GLOBAL_RANDOM}" for name, line in global_random(tree))


def too_long(path: Path, source: str) -> Iterator[str]:
    """A file that is longer than one subject can fill."""
    if (lines := source.count("\n")) > LINES_MAX:
        yield f"{lines} lines, more than {LINES_MAX}"


def too_long_functions(path: Path, source: str) -> Iterator[str]:
    """A function that a reader cannot take in at once."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"


def arguments_of(node: ast.ClassDef) -> int:
    """How many arguments the constructor of a class takes; 0 for records of configuration, which are frozen."""
    decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
    if "dataclass" in decorators:
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        given = [
            each for each in fields if not {"ClassVar", "init=False"} & set(re.findall(INTERNAL, ast.unparse(each)))
        ]
        return 0 if "frozen=True" in decorators else len(given)
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return len(each.args.args) + len(each.args.kwonlyargs) - 1
    return 0


def too_much_in_a_class(path: Path, source: str) -> Iterator[str]:
    """A class that does, or has to be given, more than one subject."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
            if methods > METHODS_MAX:
                yield f"{node.name} has {methods} methods, more than {METHODS_MAX}"
            if (arguments := arguments_of(node)) > ARGUMENTS_MAX:
                yield f"the constructor of {node.name} takes {arguments} arguments, more than {ARGUMENTS_MAX}"


def dotted(node: ast.AST) -> str:
    """`a.b` where that is what stands there, else nothing: of all expressions, `ast.unparse` takes seconds."""
    match node:
        case ast.Attribute(ast.Name(module), attribute):
            return f"{module}.{attribute}"
    return ""


def unsafe_loads(path: Path, source: str) -> Iterator[str]:
    """Every `torch.load(...)` that does not say `weights_only=True`."""
    for node in ast.walk(parsed(source)):
        if not isinstance(node, ast.Call) or dotted(node.func) != "torch.load":
            continue
        if "weights_only=True" not in [ast.unparse(keyword) for keyword in node.keywords]:
            yield f"line {node.lineno}: torch.load may run code"


RUN_A_LOOP = {"asyncio.run", "asyncio.Runner", "uvloop.run", "run_until_complete", "run_forever"}


def own_loops(tree: ast.Module) -> Iterator[int]:
    """The lines that run an event loop, but for those of a program: what stands under `if __name__ == "__main__"`."""
    for statement in tree.body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'":
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and not RUN_A_LOOP.isdisjoint((dotted(node), node.attr)):
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


RULES: dict[str, Callable[[Path, str], Iterator[str]]] = {
    "imports": broken_imports,
    "length": too_long,
    "functions": too_long_functions,
    "classes": too_much_in_a_class,
    "unsafe loads": unsafe_loads,
}


def test_the_core_does_not_grow_unnoticed() -> None:
    core = [path for path in (ROOT / "swarmflow" / "core").rglob("*.py") if "routing" not in path.parts]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in core) <= CORE_LINES_MAX


@pytest.mark.parametrize("rule", RULES)
def test_every_file_keeps_the_rule(rule: str) -> None:
    sources = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in FILES}
    assert [f"{path}: {what}" for path, source in sources.items() for what in RULES[rule](path, source)] == []


def test_the_table_has_every_package_and_no_cycle() -> None:
    """Each imports only what stands above it."""
    names = list(PACKAGES)
    assert {owner(path.relative_to(ROOT)) for path in FILES} - {""} == set(names)
    assert [
        (name, other) for at, name in enumerate(names) for other in PACKAGES[name].imports if other not in names[:at]
    ] == []


def test_the_guide_has_the_same_table() -> None:
    assert written() == table(), "write it anew: python -m tests.architecture.packages"


def test_no_module_imports_itself_by_way_of_others() -> None:
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        tree = parsed(path.read_text(encoding="utf-8"))
        nodes = [node for node in runs_at_import(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {name for node in nodes for name, _ in imports(node)}
        found = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module] = (found & modules.keys()) - {module}
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names them


COMMANDS = [
    path.relative_to(ROOT)
    for path in FILES
    if path.name == "command.py" or (path.parent.name == "commands" and path.name != "__init__.py")
]


@pytest.mark.parametrize("path", COMMANDS, ids=str)
def test_commands_load_only_click(path: Path) -> None:
    """`swarmflow --help` imports them all, and must not load torch or hivemind."""
    tree = parsed((ROOT / path).read_text(encoding="utf-8"))
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
        ("swarmflow/core/a.py", "from swarmflow.core.protocol import types"),
        ("swarmflow/core/protocol/a.py", "from swarmflow.core.routing.flow import live"),
        ("swarmflow/core/membership/a.py", "from swarmflow.core.machines.leader import Leader"),
        ("swarmflow/runtime/transport/a.py", "from swarmflow.core.machines.peer import Peer"),
        ("swarmflow/simulator/a.py", "import asyncio"),
        ("swarmflow/simulator/a.py", "import numpy as np"),
        ("swarmflow/planning/a.py", "import torch"),
        ("swarmflow/compute/a.py", "from swarmflow.runtime.transport.links import Links"),
        ("swarmflow/cli.py", "import peers.command"),
        ("swarmflow/runtime/a.py", "from trainers import data"),
        ("peers/process.py", "from trainers.data import Corpus"),
        ("trainers/process.py", "import peers"),
        ("peers/process.py", "import pickle"),
    ],
)
def test_the_rules_see_what_they_forbid(path: str, source: str) -> None:
    assert len(list(broken_imports(Path(path), source))) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "swarmflow/core/a.py",
            "from random import Random\nimport heapq\nfrom swarmflow.core.transitions import Transitions",
        ),
        (
            "swarmflow/core/commit/a.py",
            "from swarmflow.core.protocol import types\nfrom swarmflow.core import transitions",
        ),
        ("swarmflow/simulator/a.py", "from swarmflow.core.machines import peer"),
        ("swarmflow/simulator/a.py", "import random\nrng = random.Random(7)\nrng.random()"),
        ("swarmflow/compute/a.py", "import torch\nfrom swarmflow.errors import FrameError"),
        ("peers/process.py", "from swarmflow.runtime.execution.metrics import Metrics\nimport time"),
    ],
)
def test_the_rules_allow_what_the_design_allows(path: str, source: str) -> None:
    assert list(broken_imports(Path(path), source)) == []


def test_unsafe_loads_are_seen() -> None:
    source = "torch.load(f)\ntorch.load(f, weights_only=False)\ntorch.load(f, weights_only=True)"
    assert [what.split(":")[0] for what in unsafe_loads(Path("a.py"), source)] == ["line 1", "line 2"]


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
            for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_library_in_use_is_a_declared_dependency() -> None:
    """What another dependency happens to bring may vanish with its next version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[<>=!\[; ]", line)[0] for line in project["dependencies"]}
    distributions = packages_distributions()
    used = {
        name.partition(".")[0]
        for path in FILES
        for name, _ in imports(parsed(path.read_text(encoding="utf-8")))
        if not is_standard(name) and not within(name, "swarmflow", *ROLES)
    }
    of = {name: {each.lower().replace("_", "-") for each in distributions.get(name, ())} for name in used}
    assert {name for name in used if declared.isdisjoint(of[name])} == set()


def test_a_function_that_is_too_long_is_seen() -> None:
    lines = "    x = 1\n" * (FUNCTION_LINES_MAX - 1)
    source = f"def fits():\n{lines}async def does_not():\n{lines}    return x\n"
    assert list(too_long_functions(Path("a.py"), source)) == ["does_not has 51 lines, more than 50"]


def test_what_is_too_much_in_a_class_is_seen() -> None:
    """Internal fields and frozen records of configuration take no part."""
    fields = "".join(f"    a{number}: int\n" for number in range(11))
    methods = "".join(f"    def m{number}(self): ...\n" for number in range(26))
    arguments = ", ".join(f"a{number}" for number in range(11))
    internal = "    b: int = field(default=0, init=False)\n    c: ClassVar[int] = 0\n"
    legal = (
        f"@dataclass(frozen=True)\nclass A:\n{fields}@dataclass\nclass B:\n{fields.partition('    a10')[0]}{internal}"
    )
    wrong = f"@dataclass\nclass C:\n{fields}class D:\n    def __init__(self, {arguments}): ...\nclass E:\n{methods}"
    found = [what.split(",")[0] for what in too_much_in_a_class(Path("a.py"), legal + wrong)]
    taken = "the constructor of {} takes 11 arguments"
    assert found == [taken.format("C"), taken.format("D"), "E has 26 methods"]
