"""What the planners give for the five cases, by DT-FM's own cost model, beside what nothing can be below."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from experiments.common.arguments import progress
from experiments.common.rows import Row, row
from experiments.dtfm_cases.cases import DtfmCase, Model, scenario
from swarmflow.planning.arrangement import Problem
from swarmflow.planning.bound import lower_bound_s
from swarmflow.plans.comparison import planned
from swarmflow.policies.oracle import problem
from swarmflow.simulator.scenario_hardware import ScenarioHardware

COST, OF_BOUND, EVALUATED = "Cost by the model, s", "By the bound", "Arrangements evaluated"
BOUND = "bound"
STRATEGIES = ("places", "dtfm", "op-fence", "megatron", "random")
SEEDS = 5  # of the searches, and of the order of the machines, in the last case


def planning_problem(case: DtfmCase, microbatches: float | None, seed: int, gradient_bytes: int = 2) -> Problem:
    """Return the choice of stages for the machines of a case, in an order that is drawn.

    microbatches: of one sequence, that a link carries one after the other; None: all that a pipeline has in an
    iteration. The paper's cost of a pipeline can be read as that of one, or of all.
    """
    of = scenario(case, replace(Model(), gradient_bytes=gradient_bytes), "dtfm", seed)
    hardware = ScenarioHardware(of, seed, Random(seed))
    for number in range(of.peer_count):
        hardware.add_peer(number)
    pipelines = of.peer_count // of.model.stages
    return problem(hardware, of.model.microbatches / pipelines if microbatches is None else microbatches)


def plan_rows(cases: tuple[DtfmCase, ...], seed: int, seeds: int, gradient_bytes: int) -> Iterator[Row]:
    """Plan each case by each strategy, on both readings of the paper's cost. seeds: for the last of the cases."""
    readings = (("an iteration", None), ("a microbatch", 1))
    work = [(case, share, microbatches) for case in cases for share, microbatches in readings]
    for case, share, microbatches in progress(work, len(work), "dtfm_cases, plans"):
        found: dict[str, list[tuple[float, float, float]]] = {}
        for each in range(seed, seed + (seeds if case == cases[-1] else 1)):
            given = planning_problem(case, microbatches, each, gradient_bytes)
            bound_s = lower_bound_s(given)
            found.setdefault(BOUND, []).append((bound_s, 1.0, 0.0))
            for strategy in STRATEGIES:
                plan = planned(given, strategy, each)
                cost_s = plan.arrangement.cost_s
                found.setdefault(strategy, []).append((cost_s, cost_s / bound_s, float(plan.evaluated)))
        for strategy, figures in found.items():
            for metric, values in zip((COST, OF_BOUND, EVALUATED), zip(*figures, strict=True), strict=True):
                yield row(f"{case.name}, {share}", strategy, metric, list(values), None)
