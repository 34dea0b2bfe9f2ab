"""What a cut for given machines divides: the blocks of a decoder, or stretches of the operators of a module."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Protocol

from swarmflow.compute.demands import blocks_bytes, operators_bytes
from swarmflow.compute.graphs.examine import MeasuredGraph
from swarmflow.compute.graphs.places import narrow_places, parameters_before
from swarmflow.compute.layout import stage_layout
from swarmflow.compute.partition import BlockCosts, block_count, plan_cut
from swarmflow.config import RunConfig
from swarmflow.errors import ConfigError, raise_all
from swarmflow.manifest import Manifest
from swarmflow.planning.operators import OperatorCosts, cut_operators
from swarmflow.preparation.graph_check import FirstBatch, check_graph, measured_graph
from swarmflow.preparation.manifests import graph_manifest_of, manifest_of
from swarmflow.preparation.model_check import CheckedModel, check_model

PIECES_MAX = 64  # of a module: a cut is as even as one in 64 is, and the search takes seconds


class Pieces(Protocol):
    """A run's model as pieces, of which each stage has some that follow one another."""

    @property
    def unit(self) -> str:
        """What RUN.toml counts in a cut: "block" or "operator"."""

    @property
    def edges(self) -> Sequence[int]:
        """Where pieces begin in these units, and where the last one ends."""

    def name(self, piece: int) -> str:
        """Return what an error calls a piece."""

    def work_s(self, first: int, stop: int) -> float:
        """Return the seconds of a microbatch on a stage of the pieces `first` to `stop`."""

    def memory_bytes(self, first: int, stop: int) -> int:
        """Return the memory that such a stage takes with one microbatch. Raises ModelError."""

    def crossing(self) -> Sequence[int]:
        """Return the elements that a cut before each piece has cross; nothing: as many before all."""

    def even_cut(self, stages: int) -> tuple[int, ...] | None:
        """Return the first piece of the stages 1, 2, ... as RUN.toml's `stages` gives them; None: not so many."""

    def parameters(self, cut: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of each stage of a cut in units. Raises SwarmflowError for one that a trainer would refuse."""


@dataclass(frozen=True)
class DecoderBlocks:
    """A decoder. run: of it on one stage, or cut as RUN.toml says."""

    config: RunConfig
    model: CheckedModel
    run: Manifest
    unit: str = "block"

    @classmethod
    def of(cls, config: RunConfig) -> DecoderBlocks:
        """Check a model and measure its blocks. Raises SwarmflowError with all problems."""
        checked = check_model(config, measure=True)
        raise_all(checked.problems)
        assert checked.model is not None, "a model that cannot be used has a problem"
        return cls(config, checked.model, manifest_of(config, checked.model, corpus_digest="", run_id=""))

    @cached_property
    def edges(self) -> range:
        """Every block is a piece."""
        return range(block_count(self.run.model) + 1)

    def name(self, piece: int) -> str:
        """As of any pieces."""
        return f"block {piece}"

    def work_s(self, first: int, stop: int) -> float:
        """As of any pieces."""
        ends = (first == 0) * self._costs.embedding_s + (stop == self.edges[-1]) * self._costs.head_s
        return ends + (stop - first) * self._costs.block_s

    def memory_bytes(self, first: int, stop: int) -> int:
        """As of any pieces."""
        return blocks_bytes(self.run, self.model.examined.activations, first, stop, self.edges[-1])

    def crossing(self) -> Sequence[int]:
        """As of any pieces."""
        return ()

    def even_cut(self, stages: int) -> tuple[int, ...]:
        """As of any pieces."""
        return plan_cut(self.run.model, stages, self._costs)

    def parameters(self, cut: tuple[int, ...]) -> tuple[int, ...]:
        """As of any pieces."""
        if self.config.model.boundary is not None and not cut:
            raise ConfigError(
                f"model.boundary = {self.config.model.boundary!r}: for these machines one stage is best, which has no "
                "boundary; leave model.boundary out, or give --stages"
            )
        planned = replace(self.config, model=replace(self.config.model, cut=cut, stages=len(cut) + 1))
        unmeasured = replace(self.model, examined=replace(self.model.examined, costs=None))
        manifest_of(planned, unmeasured, corpus_digest="", run_id="")
        stages = range(len(cut) + 1)
        return tuple(stage_layout(self.run.model, cut, n, boundary=self.run.boundary).parameters for n in stages)

    @property
    def _costs(self) -> BlockCosts:
        assert self.model.examined.costs is not None, "they were measured"
        return self.model.examined.costs


@dataclass(frozen=True)
class ModuleOperators:
    """A module. batch: its first microbatch. run: of it on one stage. edges: places for a cut, and both ends."""

    config: RunConfig
    batch: FirstBatch
    graph: MeasuredGraph
    run: Manifest
    edges: tuple[int, ...]
    unit: str = "operator"

    @classmethod
    def of(cls, config: RunConfig, batch: FirstBatch) -> ModuleOperators:
        """Export a module and measure its operators. Raises ModelError."""
        graph = measured_graph(config, batch)
        places = narrow_places(graph.model, graph.seconds, PIECES_MAX)
        run = graph_manifest_of(config, graph.whole, corpus_digest="", run_id="")
        return cls(config, batch, graph, run, (0, *places, graph.model.operators))

    def name(self, piece: int) -> str:
        """As of any pieces, with the submodule that calls the first operator."""
        low, high = self.edges[piece : piece + 2]
        where = self.graph.workloads[low].where
        numbers = f"operators {low} to {high - 1}" if high > low + 1 else f"operator {low}"
        return f"{numbers} (from {where} on)" if where else numbers

    def work_s(self, first: int, stop: int) -> float:
        """As of any pieces."""
        return self._until_s[self.edges[stop]] - self._until_s[self.edges[first]]

    def memory_bytes(self, first: int, stop: int) -> int:
        """As of any pieces."""
        low, high = self.edges[first], self.edges[stop]
        return operators_bytes(self.run, self.graph.model, self._kept(low)[high - low], low, high)

    def crossing(self) -> Sequence[int]:
        """As of any pieces."""
        return [self.graph.model.crossing[edge] for edge in self.edges[:-1]]

    def even_cut(self, stages: int) -> tuple[int, ...] | None:
        """As of any pieces."""
        model = self.graph.model
        costs = OperatorCosts(self.graph.seconds, model.crossing, self.edges[1:-1], parameters_before(model))
        found = cut_operators(costs, stages)
        return None if found is None else tuple(map(self.edges.index, found))

    def parameters(self, cut: tuple[int, ...]) -> tuple[int, ...]:
        """As of any pieces. The stages are compared with the module."""
        planned = replace(self.config, model=replace(self.config.model, cut=cut, stages=len(cut) + 1))
        examined = check_graph(planned, self.batch)
        return graph_manifest_of(planned, examined, corpus_digest="", run_id="").parameters

    @cached_property
    def _until_s(self) -> list[float]:
        return list(itertools.accumulate(self.graph.seconds, initial=0.0))

    @cached_property
    def _kept(self) -> Callable[[int], list[int]]:
        return cache(self.graph.kept.from_operator)
