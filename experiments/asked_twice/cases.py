"""The scenarios of the other experiments, without machines that come or leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from experiments.disturbed import __main__ as disturbed
from experiments.dtfm_cases import cases as dtfm
from experiments.gwtf_churn import setting as gwtf
from experiments.gwtf_optimal import __main__ as optimal
from experiments.held_out.drawing import draw
from experiments.like_machines import __main__ as like
from experiments.llama_8b import sizes as llama
from experiments.swarm_scaling import cases as scaling
from experiments.swarm_utilisation import cases as utilisation
from swarmflow.simulator.scenario import ChurnPart, Scenario

SIZES = ((8, scaling.HOPS), (8, scaling.PAPER_HOPS), (128, scaling.HOPS), (400, scaling.HOPS))  # peers, hops of each
STAGES = (5, 9, 16)  # of Llama-3-8B
STEPS = 3  # of those with many
QUICK = 2  # of those of held_out: the heavy stage


def cases(seed: int) -> Iterator[tuple[str, Scenario]]:
    """Yield all with their names."""
    for name, of in _all(seed):
        run = replace(of.run, iterations=min(of.run.iterations, STEPS))
        yield name, replace(of, run=run, churn=ChurnPart(), arrivals=())


def quick_cases(seed: int) -> Iterator[tuple[str, Scenario]]:
    """Yield a few small ones."""
    yield "like_machines", like.scenario(quick=True)
    yield "swarm_scaling: 8 peers", scaling.scenario(8)
    yield f"held_out: {(drawn := draw(seed)[QUICK]).name}", drawn.scenario


def _all(seed: int) -> Iterator[tuple[str, Scenario]]:
    yield "disturbed", disturbed.scenario(disturbed.UNDISTURBED, quick=False)
    yield "like_machines", like.scenario(quick=False)
    yield "gwtf_optimal", optimal.scenario(seed)
    for case in dtfm.CASES:
        yield f"dtfm_cases: {case.number}", dtfm.scenario(case, dtfm.Model(), "swarmflow", seed)
    for setting in gwtf.settings():
        if not setting.chance:
            yield f"gwtf_churn: {setting.model}, {setting.column}", gwtf.scenario(setting, seed)
    for stages in STAGES:
        yield f"llama_8b: {stages} stages", llama.scenario(stages)
    for peers, hops in SIZES:
        yield f"swarm_scaling: {peers} peers, {hops} hops", scaling.scenario(peers, hops)
    for each in utilisation.table_1(quick=False):
        yield f"swarm_utilisation: {each.setting}, {each.held} in flight", utilisation.scenario(each, quick=False)
    for drawn in draw(seed):
        yield f"held_out: {drawn.name}", drawn.scenario
