"""Runs every experiment in its reduced version, one a core, and checks the rows. `make experiments-quick`."""

from __future__ import annotations

import sys

from experiments.common.commands import FOLDER, experiments, run_all

OUTPUT = FOLDER.parent / "out" / "experiments-quick"
ALL_S = 480.0  # of CPU: four minutes of two cores


def main() -> int:
    """0 when all ran, wrote rows, and took no more than ALL_S together."""
    whole_s, failed = 0.0, 0
    for name, cpu_s, wrong in run_all(experiments(), OUTPUT, "--quick"):
        whole_s += cpu_s
        failed += wrong is not None
        print(f"{name}: {'ok' if wrong is None else wrong}, {cpu_s:.1f} s of CPU", flush=True)
    print(f"all experiments: {whole_s:.1f} s of CPU, of {ALL_S:.0f} allowed")
    return int(failed > 0 or whole_s > ALL_S)


if __name__ == "__main__":
    sys.exit(main())
