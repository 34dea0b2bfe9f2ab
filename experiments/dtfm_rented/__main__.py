"""`python -m experiments.dtfm_rented`: see the README beside this file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from experiments.common.arguments import options, progress, run
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from experiments.dtfm_cases.cases import RENTED, DtfmCase, Model, petaflop, scenario
from experiments.dtfm_cases.measure import seconds

POLICIES = ("swarmflow", "swarm", "gpipe", "dtfm")
LONG = 4096  # sequences of an iteration, with which `swarm` would take many minutes
MODELS = {
    "GPT3-1.3B": Model(40, LONG),
    "GPT3-6.7B": Model(32, 1024, hidden=4096),
    "GPT3-13B": Model(40, 1024, hidden=5120),
}
RUNTIME, PFLOPS, PEAK = "Runtime of an iteration, s", "PFLOPS", "% of the peak"
PAPER = {"GPT3-1.3B": 27.4, "GPT3-6.7B": 26.4, "GPT3-13B": 29.7}  # of the peak, by its system with its scheduler
HALF = 0.5  # of the peak is what a machine computes


def rows(case: DtfmCase, models: Mapping[str, Model], seed: int) -> Iterator[Row]:
    """What each policy takes for the second of two iterations, in which routers know their peers."""
    work = [(name, policy) for name, model in models.items() for policy in POLICIES if _is_short(model, policy)]
    machines = sum(place.machines for place in case.places)
    for name, policy in progress(work, len(work), "dtfm_rented"):
        model = models[name]
        runtime_s = seconds(scenario(case, model, policy, seed), seed, policy)[-1]
        pflops = petaflop(model) / runtime_s
        share = 100 * pflops * 1e15 * HALF / (machines * case.flops)
        paper = PAPER[name] if policy == "dtfm" and model == MODELS[name] else None
        for metric, value in ((RUNTIME, runtime_s), (PFLOPS, pflops)):
            yield row(name, policy, metric, [value])
        yield row(name, policy, PEAK, [share], paper)


def _is_short(model: Model, policy: str) -> bool:
    """Whether a simulation takes a minute or two: what waits for room in `swarm` asks at each word of it."""
    return policy != "swarm" or model.batch < LONG


@click.command("dtfm_rented")
@options
def dtfm_rented(quick: bool, seed: int, json_file: Path | None) -> None:
    """DT-FM, Figure 7: three sizes of GPT-3 on 32 rented GPUs in two places."""
    models = {"GPT3-6.7B": Model(32, 16, hidden=4096)} if quick else MODELS
    found = list(rows(RENTED.thinned(2) if quick else RENTED, models, seed))
    show("DT-FM, Figure 7 (the paper's figures in brackets)", found)
    if json_file is not None:
        write_json(json_file, found)


if __name__ == "__main__":
    run(dtfm_rented)
