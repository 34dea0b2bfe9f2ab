"""The kernels in C give the same bits whichever compiler built them, and on Arm (by QEMU, on another machine).

That those of the installation give the bits of torch and numpy is tested beside each (test_optimizer.py and others).
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("kernels_program.c")
# The command of a compiler, and what runs its programs here.
COMPILERS = {
    "gcc": (("gcc",), ()),
    "clang": (("clang",), ()),
    "gcc for this processor": (("gcc", "-march=native"), ()),
    "clang for this processor": (("clang", "-march=native"), ()),
    "gcc for Arm": (("aarch64-linux-gnu-gcc", "-static"), ("qemu-aarch64",)),
    "clang for Arm": (("clang", "--target=aarch64-linux-gnu", "-static"), ("qemu-aarch64",)),
}


def results(compiler: tuple[str, ...], runner: tuple[str, ...], folder: Path, only: tuple[str, ...] = ()) -> str:
    """What a program prints whose kernels are built as an installation builds them. only: other flags than its."""
    modules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["ext-modules"]
    objects = []
    for module in modules:
        [source] = module["sources"]
        objects.append(str(folder / f"{Path(source).stem}.o"))
        flags = only or module["extra-compile-args"]
        subprocess.run([*compiler, *flags, "-c", str(ROOT / source), "-o", objects[-1]], check=True, timeout=120)
    program = str(folder / "program")
    subprocess.run([*compiler, str(PROGRAM), *objects, "-o", program, "-lm"], check=True, timeout=120)
    return subprocess.run([*runner, program], check=True, timeout=120, capture_output=True, text=True).stdout


@pytest.mark.extended
@pytest.mark.parametrize("name", COMPILERS)
def test_each_compiler_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    compiler, runner = COMPILERS[name]
    needed = {compiler[0], *runner, *(["aarch64-linux-gnu-gcc"] if runner else []), "cc"}
    if missing := sorted(each for each in needed if shutil.which(each) is None):
        pytest.skip(f"no {', '.join(missing)} here")
    wanted = results(("cc",), (), tmp_path, ("-O0", "-ffp-contract=off"))
    assert wanted.count("\n") == 13
    assert results(compiler, runner, tmp_path) == wanted


@pytest.mark.extended
def test_operations_that_are_merged_would_be_seen(tmp_path: Path) -> None:
    """Arm's compilers merge a product and a sum where they are not forbidden to, and round once instead of twice."""
    compiler, runner = COMPILERS["gcc for Arm"]
    if shutil.which(compiler[0]) is None or shutil.which(runner[0]) is None:
        pytest.skip("no compiler for Arm, or no qemu-aarch64, here")
    assert results(compiler, runner, tmp_path, ("-O3",)) != results(compiler, runner, tmp_path)
