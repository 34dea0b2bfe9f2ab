"""Runs every experiment in its reduced version, one a core, and checks the rows. `make experiments-quick`."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

from experiments.common.rows import Row

FOLDER = Path(__file__).parents[1]
OUTPUT = FOLDER.parent / "out" / "experiments-quick"
ALL_S = 480.0  # of CPU: four minutes of two cores
NAMES = [field.name for field in fields(Row)]


def experiments(folder: Path = FOLDER) -> list[str]:
    """The names of the folders that have a command, in their order."""
    return sorted(path.parent.name for path in folder.glob("*/__main__.py"))


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


def run(name: str) -> tuple[float, str | None]:
    """Run one. CPU seconds, and what is wrong with it."""
    file = OUTPUT / f"{name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"experiments.{name}", "--quick", "--json", str(file)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=FOLDER.parent, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)  # what this process alone has used, while others run
        process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s = used.ru_utime + used.ru_stime
    if process.returncode != 0:
        return cpu_s, f"exit code {process.returncode}"
    return cpu_s, fault(file.read_text(encoding="utf-8"))


def main() -> int:
    """0 when all ran, wrote rows, and took no more than ALL_S together."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    whole_s, failed = 0.0, 0
    names = experiments()
    with ThreadPoolExecutor(os.cpu_count()) as cores:
        for name, (cpu_s, wrong) in zip(names, cores.map(run, names), strict=True):
            whole_s += cpu_s
            failed += wrong is not None
            print(f"{name}: {'ok' if wrong is None else wrong}, {cpu_s:.1f} s of CPU", flush=True)
    print(f"all experiments: {whole_s:.1f} s of CPU, of {ALL_S:.0f} allowed")
    return int(failed > 0 or whole_s > ALL_S)


if __name__ == "__main__":
    sys.exit(main())
