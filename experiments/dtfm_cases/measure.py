"""What each policy makes of the cases, and how that compares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.common.arguments import progress
from experiments.common.rows import Row, row
from experiments.dtfm_cases.cases import BATCH, CASES, LAYERS, DtfmCase, Model, petaflop, scenario
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.scenario import Scenario

Found = dict[tuple[DtfmCase, str], list[tuple[float, ...]]]  # seconds of the iterations, a repetition each
POLICIES = ("swarmflow", "swarm", "gpipe", "dtfm")
REPETITIONS = 1  # random layouts; appendix 10.1 has three
FIRST, RUNTIME, PFLOPS = "First iteration, s", "Runtime of an iteration, s", "PFLOPS"
SLOWDOWN, SPEEDUP = "First: slower than Case 1", "First: faster than gpipe"
PAPER = {  # section 4.2: which models the ends of "1.7 - 3.5x" are of follows from what it says of batches and layers
    (5, 24, 1024, "dtfm", SLOWDOWN): 3.5,
    (5, 40, 4096, "dtfm", SLOWDOWN): 1.7,
    (5, 24, 1024, "dtfm", SPEEDUP): 2.7,
}


@dataclass(frozen=True, slots=True)
class Part:
    """Cases (case 1 among them) in which some policies train a model. iterations: 1, or 2, where the second counts."""

    model: Model
    cases: tuple[DtfmCase, ...]
    policies: tuple[str, ...]
    repetitions: int
    iterations: int

    def setting(self, case: DtfmCase) -> str:
        """The case, and the model where it is not the smallest."""
        smallest = (self.model.layers, self.model.batch) == (LAYERS, BATCH)
        return case.name if smallest else f"{case.name}, {self.model.layers} layers, batch {self.model.batch}"


def whole(model: Model, repetitions: int) -> Part:
    """A model in all cases: the smallest in two iterations, any other in the first alone."""
    if (model.layers, model.batch) == (LAYERS, BATCH):
        return Part(model, CASES, POLICIES, repetitions, 2)
    # What waits for room asks at each word of it: with batch 4096 `swarm` would take many minutes.
    few = tuple(policy for policy in POLICIES if policy != "swarm")
    return Part(model, CASES, few, repetitions, 1)


def reduced(gradient_bytes: int) -> Part:
    """A quarter of the machines, in the first case and in the last."""
    few = (CASES[0].thinned(4), CASES[-1].thinned(4))
    return Part(Model(LAYERS, 64, gradient_bytes), few, POLICIES, 1, 2)


def seconds(scene: Scenario, seed: int, policy: str) -> tuple[float, ...]:
    """Of each iteration. Raises SwarmflowError when the simulation does not come to its end, or breaks a promise."""
    report = Simulation(scene, seed, policy).run()
    if report.outcome != "finished":
        raise SwarmflowError(f"policy {policy}, seed {seed}: {'; '.join(report.violations) or report.outcome}")
    return tuple(iteration.seconds for iteration in report.iterations)


def measure(part: Part, seed: int) -> Found:
    """Simulate everything."""
    work = [(case, policy) for case in part.cases for policy in part.policies]
    return {
        (case, policy): [
            seconds(scenario(case, part.model, policy, each, part.iterations), each, policy)
            for each in range(seed, seed + part.repetitions)
        ]
        for case, policy in progress(work, len(work), "dtfm_cases")
    }


def rows(part: Part, found: Found) -> Iterator[Row]:
    """All of a part: runtimes, and those of the first iterations by the fastest in case 1, seed by seed."""
    firsts = {key: [took[0] for took in each] for key, each in found.items()}
    least = [min(times) for times in zip(*(firsts[part.cases[0], policy] for policy in part.policies), strict=True)]
    for (case, policy), each in found.items():
        first = firsts[case, policy]
        figures = {FIRST: first, SLOWDOWN: [here / there for here, there in zip(first, least, strict=True)]}
        if "gpipe" in part.policies:
            figures[SPEEDUP] = [there / here for here, there in zip(first, firsts[case, "gpipe"], strict=True)]
        if part.iterations > 1:
            figures[RUNTIME] = [took[-1] for took in each]
            figures[PFLOPS] = [petaflop(part.model) / took[-1] for took in each]
        for metric, values in figures.items():
            paper = PAPER.get((case.number, part.model.layers, part.model.batch, policy, metric))
            yield row(part.setting(case), policy, metric, values, paper)
