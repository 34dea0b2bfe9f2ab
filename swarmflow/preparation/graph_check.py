"""Whether a module can be trained as RUN.toml asks: it is exported, cut and tried before others are invited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from swarmflow.compute.graphs.description import BatchTensor
from swarmflow.compute.graphs.examine import ExaminedGraph, examine_graph
from swarmflow.config import RunConfig
from swarmflow.planning.operators import OperatorCosts, cut_operators


def check_graph(config: RunConfig, inputs: Sequence[BatchTensor], batch: Mapping[str, Tensor]) -> ExaminedGraph:
    """Return what was found out of the module that a run trains.

    inputs, batch: the form of a microbatch, and one of them. Raises ModelError, naming what the module does that stages
    cannot.
    """
    section, train = config.model, config.train
    assert section.module is not None, "a run of a module"

    def plan(
        seconds: Sequence[float], crossing: Sequence[int], places: Sequence[int], filled: Sequence[int], stages: int
    ) -> tuple[int, ...] | None:
        return cut_operators(OperatorCosts(seconds, crossing, places, filled), stages)

    return examine_graph(
        section.module,
        section.module_config or {},
        inputs,
        batch,
        train.microbatch_sequences,
        train.seed,
        section.stages,
        section.cut,
        plan,
        train.precision,
        dropout=section.dropout,
    )
