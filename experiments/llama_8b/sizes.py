"""Llama-3-8B in so many stages: the cut, and the least time that a step of it can take on like machines."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from pathlib import Path

from swarmflow.simulator.distributions import Constant
from swarmflow.simulator.scenario import Scenario, load
from swarmflow.simulator.scenario_hardware import BYTES_PER_MBIT, ScenarioHardware

FILE = Path(__file__).parents[2] / "examples" / "llama-8b.toml"
BLOCKS, BLOCK = 32, 218_112_000  # and the parameters of one
EMBEDDING = 128_256 * 4096  # as many as the head's
HEAD_COST = EMBEDDING / BLOCK  # of computing, in blocks


def cut(stages: int) -> list[int]:
    """How many blocks each stage has: as many parameters as possible to each alike. The ends have one at least."""
    ends = {0, stages - 1}
    counts = [1] * stages
    heap = [(2 + HEAD_COST * (stage in ends), stage) for stage in range(stages)]
    heapq.heapify(heap)
    for _ in range(BLOCKS - stages):
        size, stage = heap[0]
        counts[stage] += 1
        heapq.heapreplace(heap, (size + 1, stage))
    return counts


def scenario(stages: int, delay: int = 0) -> Scenario:
    """The scenario of the example, in so many stages and with this delay of updates."""
    base, counts = load(FILE), cut(stages)
    ends = {0, stages - 1}
    parameters = tuple(count * BLOCK + EMBEDDING * (stage in ends) for stage, count in enumerate(counts))
    costs = tuple(count + HEAD_COST * (stage == stages - 1) for stage, count in enumerate(counts))
    scale = base.model.stages / stages  # the operations of a mean stage
    model = replace(
        base.model,
        stages=stages,
        parameters=parameters,
        costs=costs,
        forward_flops=base.model.forward_flops * scale,
        backward_flops=(base.model.backward_flops or 0.0) * scale,
        delay=delay,
        state_bytes=base.model.state_bytes + 4.0 * delay,  # the parameters of the version before
    )
    return replace(base, model=model)


@dataclass(frozen=True)
class Bound:
    """The least seconds of a step: of its busiest stage, with the best numbers of peers, and of an empty pipeline.

    With delayed updates the pipeline is never empty.
    """

    busy_s: float
    fill_s: float
    peers: tuple[int, ...]  # of each stage

    @property
    def step_s(self) -> float:
        """Both together."""
        return self.busy_s + self.fill_s


def bound(of: Scenario, hardware: ScenarioHardware) -> Bound:
    """Return the bound for peers that are all alike.

    Each stage sends every microbatch's activation on and its gradient back over its peers' uplinks, which may compute
    meanwhile; then each of n peers sends 2 (n - 1) / n of the stage's sums, with delayed updates while they compute.
    """
    model, group = of.model, of.peers[0]
    assert isinstance(group.up_mbps, Constant), "peers that are alike"
    rate = group.up_mbps.value * BYTES_PER_MBIT
    name = hardware.add_peer(0)
    tensor_s = hardware.boundary_bytes(0, "activation") / rate

    def stage_s(stage: int, peers: int) -> float:
        directions = (stage < model.stages - 1) + (stage > 0)
        sums = hardware.piece().usual_bytes(hardware.elements(f"stage-{stage}"))
        all_reduce_s = 2 * (peers - 1) / peers * sums / rate
        sending_s = model.microbatches * directions * tensor_s / peers
        computing_s = model.microbatches * 2 * hardware.pass_s(name, stage) / peers
        if model.delay:
            return max(sending_s + all_reduce_s, computing_s)
        return max(sending_s, computing_s) + all_reduce_s

    def allotted(limit_s: float) -> list[int] | None:
        found = [
            next((peers for peers in range(1, group.count + 1) if stage_s(stage, peers) <= limit_s), None)
            for stage in range(model.stages)
        ]
        fits = [peers for peers in found if peers is not None]
        return fits if len(fits) == len(found) and sum(fits) <= group.count else None

    low_s, high_s = 0.0, 1e6
    while high_s - low_s > 0.1:
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if allotted(middle_s) is not None else (middle_s, high_s)
    latency_s, _ = hardware.link(name, hardware.add_peer(1))
    computing_s = sum(2 * hardware.pass_s(name, stage) for stage in range(model.stages))
    fill_s = 0.0 if model.delay else 2 * (model.stages - 1) * (tensor_s + latency_s) + computing_s
    return Bound(high_s, fill_s, tuple(allotted(high_s) or ()))
