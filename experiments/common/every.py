"""Runs every experiment as its README gives it, one a core, and says what each takes. `make experiments`."""

from __future__ import annotations

import sys

from experiments.common.commands import FOLDER, experiments, run_all

OUTPUT = FOLDER.parent / "out" / "experiments"
EACH_S = 600.0  # of CPU: ten minutes of a core
BESIDE = ("gwtf_churn.steps",)  # commands in the folder of another one


def main(names: list[str]) -> int:
    """0 when all of these ran, wrote rows, and took no more than EACH_S each. names: empty for all."""
    failed = 0
    for name, cpu_s, wrong in run_all(names or [*experiments(), *BESIDE], OUTPUT):
        wrong = f"{cpu_s - EACH_S:.0f} s more than allowed" if wrong is None and cpu_s > EACH_S else wrong
        failed += wrong is not None
        print(f"{name}: {'ok' if wrong is None else wrong}, {cpu_s:.0f} s of CPU", flush=True)
    print(f"What they print, and their rows, are in {OUTPUT}.")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
