"""The wheel: built from this checkout, installed in a fresh environment, run from another folder."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from click import Command

from swarmflow import cli

ROOT = Path(__file__).parents[2]
SOURCES = ("swarmflow", "peers", "trainers", "pyproject.toml", "README.md", "LICENSE")
TEXTS = {".md", ".py", ".toml", ".sh", ".yml", ".yaml", ".env"}
HELP_CPU_SECONDS_MAX = 0.5
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = PROJECT["entry-points"][cli.COMMAND_GROUP]


def run(*arguments: str | Path, cwd: Path = ROOT) -> str:
    # A checkout on the caller's PYTHONPATH would pass for the installed wheel.
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(arguments, cwd=cwd, env=inherited, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built offline from a copy, so that the checkout stays clean."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    run(sys.executable, "-c", build, copy / "dist", cwd=copy)
    [built] = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel; the dependencies are those of the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    install = ("install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", wheel)
    run(sys.executable, "-m", "pip", "--python", folder, *install)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    [info] = [top for top in tops if top.endswith(".dist-info")]
    assert tops - {info} == {"swarmflow", "peers", "trainers"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    in_checkout = {path.relative_to(ROOT).as_posix() for top in tops - {info} for path in (ROOT / top).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == in_checkout


def test_the_distribution_is_not_named_like_another_project(wheel: Path) -> None:
    """`swarmflow` on the package index is another project's; nothing may tell a user to install that."""
    assert wheel.name.split("-")[0] == PROJECT["name"].replace("-", "_") == "swarmflow_train"
    wrong = re.compile(r"\binstall (?:-\S+ )*[\"'`]?swarmflow(?![\w.-])", re.IGNORECASE)
    folders = ("swarmflow", "peers", "trainers", "docs", "docker", "packaging", "examples", "experiments", "benchmarks")
    texts = [path for name in folders for path in (ROOT / name).rglob("*") if path.suffix in TEXTS]
    texts += [path for path in ROOT.iterdir() if path.suffix in TEXTS or path.name == "Makefile"]
    assert [path for path in texts if wrong.search(path.read_text(encoding="utf-8"))] == []


def test_the_wheel_says_that_its_packages_are_typed(wheel: Path) -> None:
    marked = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("py.typed")}
    assert marked == {"swarmflow/py.typed", "peers/py.typed", "trainers/py.typed"}


def test_help_from_the_root_folder_is_quick_and_lists_every_command(environment: Path) -> None:
    shown = run(environment / "bin" / "swarmflow", "--help", cwd=Path("/"))
    listed = shown.partition("Commands:")[2]
    assert set(re.findall(r"^  (\w+) +\S", listed, re.MULTILINE)) == set(DECLARED)
    cpu_seconds = []
    for _ in range(3):
        process = subprocess.Popen(
            [environment / "bin" / "swarmflow", "--help"], cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        cpu_seconds.append(usage.ru_utime + usage.ru_stime)
    print(f"swarmflow --help: {min(cpu_seconds):.3f} s of CPU")
    assert min(cpu_seconds) < HELP_CPU_SECONDS_MAX


def test_help_loads_no_heavy_library(environment: Path) -> None:
    show = "import sys; from swarmflow.cli import main; main(['--help']); print(*sys.modules)"
    loaded = set(run(environment / "bin" / "python", "-c", show, cwd=Path("/")).split())
    assert {"click", "peers.command", "trainers.command"} <= loaded
    assert loaded & {"torch", "hivemind", "transformers", "numpy", "datasets", "bitsandbytes", "uvloop"} == set()


def test_the_version_is_the_wheels(environment: Path, wheel: Path) -> None:
    shown = run(environment / "bin" / "swarmflow", "--version", cwd=Path("/")).strip()
    assert shown == f"swarmflow, version {wheel.name.split('-')[1]}"


def test_every_dependency_is_pinned_by_the_constraints() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {re.sub(r"[-_.]+", "-", name).lower() for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    wanted = chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    names = {re.sub(r"[-_.]+", "-", re.split(r"[<>=!\[; ]", line)[0]).lower() for line in wanted}
    assert names - pinned == set()
    assert "torch==2.13.0\n" in text


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_every_declared_command_exists(name: str) -> None:
    entry_point = importlib.metadata.EntryPoint(name, DECLARED[name], cli.COMMAND_GROUP)
    command = entry_point.load()
    assert isinstance(command, Command)
    assert command.get_short_help_str()
