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

# Peers and the hops of each, stages of Llama-3-8B, microbatches in flight of swarm_utilisation. What is there only with
# --full takes six minutes.
SIZES = ((8, scaling.HOPS), (8, scaling.PAPER_HOPS), (128, scaling.HOPS))
SIZES_FULL = ((400, scaling.HOPS),)
STAGES = (9,)
STAGES_FULL = (5, 16)
STEPS = 3  # of those with many
QUICK = 2  # of those of held_out: the heavy stage


def cases(seed: int, full: bool) -> Iterator[tuple[str, Scenario]]:
    """Yield them with their names. full: all of them."""
    for name, of in _cases(seed, full):
        run = replace(of.run, iterations=min(of.run.iterations, STEPS))
        yield name, replace(of, run=run, churn=ChurnPart(), arrivals=())


def quick_cases(seed: int) -> Iterator[tuple[str, Scenario]]:
    """Yield a few small ones."""
    yield "like_machines", like.scenario(quick=True)
    yield "swarm_scaling: 8 peers", scaling.scenario(8)
    yield f"held_out: {(drawn := draw(seed)[QUICK]).name}", drawn.scenario


def _cases(seed: int, full: bool) -> Iterator[tuple[str, Scenario]]:
    yield "disturbed", disturbed.scenario(disturbed.UNDISTURBED, quick=False)
    yield "like_machines", like.scenario(quick=False)
    yield "gwtf_optimal", optimal.scenario(seed)
    for case in dtfm.CASES:
        yield f"dtfm_cases: {case.number}", dtfm.scenario(case, dtfm.Model(), "swarmflow", seed)
    for setting in gwtf.settings():
        if not setting.chance:
            yield f"gwtf_churn: {setting.model}, {setting.column}", gwtf.scenario(setting, seed)
    for stages in STAGES + full * STAGES_FULL:
        yield f"llama_8b: {stages} stages", llama.scenario(stages)
    for peers, hops in SIZES + full * SIZES_FULL:
        yield f"swarm_scaling: {peers} peers, {hops} hops", scaling.scenario(peers, hops)
    for each in utilisation.table_1(quick=False):
        if each.held < utilisation.MANY or full:
            yield f"swarm_utilisation: {each.setting}, {each.held} in flight", utilisation.scenario(each, quick=False)
    for drawn in draw(seed):
        yield f"held_out: {drawn.name}", drawn.scenario
