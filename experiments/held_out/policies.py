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


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """What a policy takes. seconds: of an iteration, for each seed; none where it did not get to its end.

    recompute: whether with it, of which a baseline has the better choice. reason: why there are no figures.
    """

    seconds: tuple[float, ...]
    recompute: bool = True
    reason: str = ""

    @property
    def mean_s(self) -> float:
        """Over the seeds; infinite without figures."""
        return fmean(self.seconds) if self.seconds else float("inf")


def measure(drawn: HeldOutScenario, name: str, seeds: Sequence[int]) -> PolicyResult:
    """Simulate a policy by its name in ALL: swarmflow as it is, of a baseline the better of recompute and none."""
    if name in OURS:
        router = name.removeprefix("swarmflow ")
        return _over(drawn, replace(drawn.scenario.run, router=router), "swarmflow", seeds)
    choices = [
        _over(drawn, replace(drawn.scenario.run, recompute=recompute), name, seeds) for recompute in (True, False)
    ]
    return min(choices, key=lambda choice: choice.mean_s)


def _over(drawn: HeldOutScenario, run: RunPart, policy: str, seeds: Sequence[int]) -> PolicyResult:
    scenario = replace(drawn.scenario, run=run)
    try:
        seconds = tuple(seconds_of(drawn, scenario, policy, seed) for seed in seeds)
    except SwarmflowError as error:
        return PolicyResult((), run.recompute, str(error))
    return PolicyResult(seconds, run.recompute)


def seconds_of(drawn: HeldOutScenario, scenario: Scenario, policy: str, seed: int) -> float:
    """Seconds of an iteration, in the mean of those that are measured. Raises SwarmflowError where it does not end."""
    return report_of(drawn, scenario, policy, seed).over(lambda row: row.seconds)[0]


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
