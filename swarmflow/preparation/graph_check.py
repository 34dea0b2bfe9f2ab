"""Whether a module can be trained as RUN.toml asks: it is exported, cut and tried before others are invited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from swarmflow.compute.graphs.description import BatchTensor
from swarmflow.compute.graphs.examine import ExaminedGraph, MeasuredGraph, ModuleTrial, examine_graph, measure_graph
from swarmflow.config import RunConfig
from swarmflow.planning.operators import OperatorCosts, cut_operators


@dataclass(frozen=True)
class FirstBatch:
    """The form of a module's microbatches, and the first of them."""

    inputs: Sequence[BatchTensor]
    tensors: Mapping[str, Tensor]


def check_graph(config: RunConfig, first: FirstBatch) -> ExaminedGraph:
    """Return what was found out of the module that a run trains.

    Raises ModelError, naming what the module does that stages cannot.
    """

    def plan(
        seconds: Sequence[float], crossing: Sequence[int], places: Sequence[int], filled: Sequence[int], stages: int
    ) -> tuple[int, ...] | None:
        return cut_operators(OperatorCosts(seconds, crossing, places, filled), stages)

    return examine_graph(_trial(config, first), config.model.stages, config.model.cut, plan)


def measured_graph(config: RunConfig, first: FirstBatch) -> MeasuredGraph:
    """Return what the operators of a run's module take and keep. Raises ModelError."""
    return measure_graph(_trial(config, first))


def _trial(config: RunConfig, first: FirstBatch) -> ModuleTrial:
    section, train = config.model, config.train
    assert section.module is not None, "a run of a module"
    return ModuleTrial(
        section.module,
        section.module_config or {},
        first.inputs,
        first.tensors,
        train.microbatch_sequences,
        train.seed,
        train.precision,
        section.dropout,
    )
