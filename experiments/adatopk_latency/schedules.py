"""Which GPU computes which modules of GPT2-XL: FusionLLM's two baselines, OP-Fence, and swarmflow's `places`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random

from experiments.adatopk_latency.testbed import Testbed, TestbedLinks, problem
from swarmflow.planning.strategies import STRATEGIES

OP_FENCE = "OP-Fence"
LAYERS, HIDDEN, WORDS, TOKENS, SEQUENCES = 48, 1600, 50257, 1024, 3  # of a microbatch: 3 sequences of 1024 tokens
ACTIVATION_BYTES = SEQUENCES * TOKENS * HIDDEN * 4  # the paper's "around 20 MB"
# Operations of a forward pass: the embedding, the blocks, and the head.
MODULES: tuple[float, ...] = (
    0.0,
    *(SEQUENCES * TOKENS * (24.0 * HIDDEN**2 + 4 * TOKENS * HIDDEN) for _ in range(LAYERS)),
    SEQUENCES * TOKENS * 2.0 * HIDDEN * WORDS,
)


@dataclass(frozen=True, slots=True)
class ModuleSchedule:
    """Stages in their order. gpus: who serves each. flops: of a forward pass at each."""

    gpus: tuple[int, ...]
    flops: tuple[float, ...]


def equal_number(stages: int) -> tuple[float, ...]:
    """Cut the modules into parts of as many modules each."""
    ends = [stage * len(MODULES) // stages for stage in range(stages + 1)]
    return tuple(sum(MODULES[first:stop]) for first, stop in pairwise(ends))


def balanced(speeds: Sequence[float]) -> tuple[float, ...]:
    """Cut the modules so that the slowest stage is as fast as possible. speeds: of the stages, relative.

    A dynamic program: the least time of the slowest of the first stages, by the modules that they have. A stage has one
    module at least.
    """
    count, sums = len(MODULES), [0.0, *accumulate(MODULES)]
    best: list[list[tuple[float, int]]] = [[(0.0 if stop == 0 else float("inf"), 0) for stop in range(count + 1)]]
    for speed in speeds:
        former = best[-1]
        best.append(
            [
                min(
                    ((max(former[first][0], (sums[stop] - sums[first]) / speed), first) for first in range(stop)),
                    default=(float("inf"), 0),
                )
                for stop in range(count + 1)
            ]
        )
    stop, found = count, []
    for row in reversed(best[1:]):
        first = row[stop][1]
        found.append(sums[stop] - sums[first])
        stop = first
    return tuple(reversed(found))


def _drawn(testbed: Testbed, seed: int) -> list[int]:
    gpus = list(range(len(testbed.gpus)))
    Random(f"order {seed}").shuffle(gpus)
    return gpus


def _alike(testbed: Testbed, of: TestbedLinks, seed: int) -> ModuleSchedule:
    return ModuleSchedule(tuple(_drawn(testbed, seed)), equal_number(len(testbed.gpus)))


def _balanced(testbed: Testbed, of: TestbedLinks, seed: int) -> ModuleSchedule:
    return ModuleSchedule(tuple(_drawn(testbed, seed)), balanced([1.0] * len(testbed.gpus)))


def _by_speed(testbed: Testbed, gpus: Sequence[int]) -> ModuleSchedule:
    return ModuleSchedule(tuple(gpus), balanced([testbed.flops[gpu] for gpu in gpus]))


def _planned(strategy: str) -> Callable[[Testbed, TestbedLinks, int], ModuleSchedule]:
    def schedule(testbed: Testbed, of: TestbedLinks, seed: int) -> ModuleSchedule:
        found = STRATEGIES[strategy](problem(testbed, of, ACTIVATION_BYTES), Random(seed))
        return _by_speed(testbed, found.pipelines[0])

    return schedule


SCHEDULES: dict[str, Callable[[Testbed, TestbedLinks, int], ModuleSchedule]] = {
    "equal number": _alike,
    "equal computation": _balanced,
    "by speed, drawn order": lambda testbed, of, seed: _by_speed(testbed, _drawn(testbed, seed)),
    "by speed, order of the machines": lambda testbed, of, seed: _by_speed(testbed, range(len(testbed.gpus))),
    OP_FENCE: _planned("op-fence"),
    "places": _planned("places"),
}
