"""What each router of swarmflow and each baseline takes for an iteration of a drawn scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from experiments.held_out.drawing import HeldOutScenario
from swarmflow.core.routing.routers import ROUTERS
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.report import SimulationReport
from swarmflow.simulator.scenario import Arrival, RunPart, Scenario

DEFAULT = ROUTERS[0]
BASELINES = ("swarm", "swarm-restart", "gpipe", "gwtf")
ORACLE = "dtfm"
OURS = tuple(f"swarmflow {router}" for router in ROUTERS)
ALL = (*OURS, *BASELINES, ORACLE)
# Without these a seed takes minutes: they negotiate in every virtual second, behind consumer links for very many.
NEGOTIATING = ("swarmflow gwtf", "swarmflow gwtf-sum", "gwtf")
CHEAP = tuple(policy for policy in ALL if policy not in NEGOTIATING)


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """What a policy takes. seconds: of an iteration, for each seed; none where it did not get to its end.

    An iteration from which gradients are missing is shorter than one of all of them: its seconds are divided by the
    share that was learnt. counted_seconds: as if gradients that died with a peer had been learnt. recompute: whether
    with it, of which a baseline has the better choice. reason: why there are no figures.
    """

    seconds: tuple[float, ...]
    counted_seconds: tuple[float, ...]
    recompute: bool = True
    reason: str = ""

    @property
    def mean_s(self) -> float:
        """Over the seeds; infinite without figures."""
        return fmean(self.seconds) if self.seconds else float("inf")

    @property
    def counted(self) -> PolicyResult:
        """What it takes where gradients that died with a peer count as learnt."""
        return replace(self, seconds=self.counted_seconds)


def measure(drawn: HeldOutScenario, name: str, seeds: Sequence[int]) -> PolicyResult:
    """Simulate a policy by its name in ALL: swarmflow as it is, of a baseline the better of recompute and none."""
    if name in OURS:
        router = name.removeprefix("swarmflow ")
        return _over(drawn, replace(drawn.scenario.run, router=router), "swarmflow", seeds)
    choices = [
        _over(drawn, replace(drawn.scenario.run, recompute=recompute), name, seeds) for recompute in (True, False)
    ]
    best, best_counted = (min(choices, key=mean_s) for mean_s in (lambda c: c.mean_s, lambda c: c.counted.mean_s))
    return replace(best, counted_seconds=best_counted.counted_seconds)


def _over(drawn: HeldOutScenario, run: RunPart, policy: str, seeds: Sequence[int]) -> PolicyResult:
    scenario = replace(drawn.scenario, run=run)
    try:
        reports = [report_of(drawn, scenario, policy, seed) for seed in seeds]
    except SwarmflowError as error:
        return PolicyResult((), (), run.recompute, str(error))
    seconds, counted = (
        tuple(report.over(of)[0] for report in reports)
        for of in (lambda row: row.learnt_seconds, lambda row: row.seconds)
    )
    return PolicyResult(seconds, counted, run.recompute)


def report_of(drawn: HeldOutScenario, scenario: Scenario, policy: str, seed: int) -> SimulationReport:
    """Simulate a drawn scenario, its death included. Raises SwarmflowError where it does not end."""
    if drawn.death is not None:
        # The same run up to the death tells when this policy is so far.
        run = replace(scenario.run, iterations=1)
        undisturbed = _finished(replace(scenario, run=run), policy, seed).iterations[-1]
        time_s = undisturbed.end_s - (1 - drawn.death.share) * undisturbed.seconds
        arrivals = tuple(Arrival(time_s, False, peer) for peer in drawn.death.peers)
        scenario = replace(scenario, arrivals=arrivals)
    return _finished(scenario, policy, seed)


def _finished(scenario: Scenario, policy: str, seed: int) -> SimulationReport:
    report = Simulation(scenario, seed, policy).run()
    if report.outcome != "finished":
        raise SwarmflowError(f"{'; '.join(report.violations) or report.outcome} (seed {seed})")
    return report
