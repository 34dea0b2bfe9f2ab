"""The commands of all experiments: which there are, how one is run, and what is wrong with the rows that it writes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

from experiments.common.rows import Row

FOLDER = Path(__file__).parents[1]
NAMES = [field.name for field in fields(Row)]


def experiments(folder: Path = FOLDER) -> list[str]:
    """The names of the folders that have a command, in their order."""
    return sorted(path.parent.name for path in folder.glob("*/__main__.py"))


def run_all(names: Sequence[str], output: Path, *arguments: str) -> Iterator[tuple[str, float, str | None]]:
    """Run several, one a core. Yields of each, in their order: its name, CPU seconds, and what is wrong with it."""
    output.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as cores:
        results = cores.map(lambda name: run(name, output, *arguments), names)
        for name, (cpu_s, wrong) in zip(names, results, strict=True):
            yield name, cpu_s, wrong


def fault(text: str) -> str | None:
    """What is wrong with a file of rows, if anything is."""
    rows = json.loads(text)
    if not isinstance(rows, list) or not rows:
        return "no list of rows"
    seen: set[tuple[str, str, str]] = set()
    for number, row in enumerate(rows):
        if list(row) != NAMES:
            return f"row {number} has the keys {list(row)}, not {NAMES}"
        numbers: Iterable[object] = (row["mean"], row["std"], 0.0 if row["paper"] is None else row["paper"])
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in numbers):
            return f"row {number} has a figure that is no number: {row}"
        if row["n"] < 1:
            return f"row {number} is of no repetition"
        key = (row["setting"], row["policy"], row["metric"])
        if key in seen:
            return f"row {number} is there twice: {key}"
        seen.add(key)
    return None


def run(name: str, output: Path, *arguments: str) -> tuple[float, str | None]:
    """Run one: its rows and what it prints go to files in `output`. CPU seconds, and what is wrong with it."""
    file = output / f"{name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"experiments.{name}", *arguments, "--json", str(file)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        open(output / f"{name}.txt", "wb") as printed,
        subprocess.Popen(command, cwd=FOLDER.parent, env=environment, stdout=printed) as process,
    ):
        _, status, used = os.wait4(process.pid, 0)  # what this process alone has used, while others run
        process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s = used.ru_utime + used.ru_stime
    if process.returncode != 0:
        return cpu_s, f"exit code {process.returncode}"
    return cpu_s, fault(file.read_text(encoding="utf-8"))
