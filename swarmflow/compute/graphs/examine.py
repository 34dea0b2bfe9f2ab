"""Examines a module before a run: whether it can be exported and cut, and what its operators cost."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.families import one_line
from swarmflow.compute.finite import finite
from swarmflow.compute.graphs.capture import OperatorGraph, capture, where
from swarmflow.compute.graphs.description import BatchTensor, GraphModel
from swarmflow.compute.graphs.kept import KeptByOperators, measure_kept
from swarmflow.compute.graphs.places import allowed_places, parameters_before
from swarmflow.compute.graphs.stage import GraphStage
from swarmflow.compute.graphs.user_functions import build_module
from swarmflow.compute.graphs.workload import OperatorWorkload, gradients_of, measure
from swarmflow.compute.grouped_stage import GraphInput
from swarmflow.compute.runner import StageRunner
from swarmflow.errors import ModelError
from swarmflow.suggestions import did_you_mean

# (seconds of each operator, elements that cross before it, places where it can be cut, parameters before it, stages)
Planner = Callable[[Sequence[float], Sequence[int], Sequence[int], Sequence[int], int], tuple[int, ...] | None]


@dataclass(frozen=True)
class ExaminedGraph:
    """A module that can be trained in stages.

    costs: seconds of each stage for one microbatch. activation_bytes: that each stage keeps of one for its backward.
    """

    model: GraphModel
    cut: tuple[int, ...]
    costs: tuple[float, ...]
    activation_bytes: tuple[int, ...]
    workloads: tuple[OperatorWorkload, ...]

    @property
    def gigaflops(self) -> float:
        """The operations of one microbatch, forward and backward, in units of 10^9."""
        return sum(each.gigaflops for each in self.workloads)


@dataclass(frozen=True)
class MeasuredGraph:
    """A module that can be exported, and what its operators take and keep."""

    model: GraphModel
    workloads: tuple[OperatorWorkload, ...]
    kept: KeptByOperators

    @property
    def seconds(self) -> list[float]:
        """Of each operator, for one microbatch."""
        return [each.seconds for each in self.workloads]

    @property
    def whole(self) -> ExaminedGraph:
        """The module on one stage."""
        kept_bytes = self.kept.from_operator(0)[-1]
        return ExaminedGraph(self.model, (), (sum(self.seconds),), (kept_bytes,), self.workloads)


@dataclass(frozen=True)
class ModuleTrial:
    """A module, and a microbatch to try it with.

    module: "package:function". config: its arguments. inputs: the form of microbatches. items: of one. seed: of the
    first parameters.
    """

    module: str
    config: Mapping[str, Any]
    inputs: Sequence[BatchTensor]
    batch: Mapping[str, Tensor]
    items: int
    seed: int
    precision: str = "fp32"
    dropout: bool = False

    def graph(self) -> OperatorGraph:
        """Export the module. Raises ModelError."""
        return capture(self.module, self.config, self.inputs, self.seed, self.precision, dropout=self.dropout)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Raise ModelError where torch cannot compute with the microbatch."""
        try:
            yield
        except (RuntimeError, IndexError) as error:  # of torch
            reason = f"fails with the first microbatch ({one_line(error)})"
            raise ModelError(f"model.module = {self.module!r} {reason}") from error


def examine_graph(
    trial: ModuleTrial, stages: int, cut: Sequence[int] | Sequence[str] | None, plan: Planner
) -> ExaminedGraph:
    """Export a module, cut it and compare the stages with the module itself on one microbatch.

    cut: operators, or submodules by name; None where it follows from the operators' costs, by `plan`. Raises
    ModelError.
    """
    graph, batch = trial.graph(), trial.batch
    model = graph.describe(trial.module, trial.config, trial.items)
    with trial.computing():
        workloads = tuple(measure(graph, batch))
    seconds = [each.seconds for each in workloads]
    chosen = _planned(model, seconds, stages, plan) if cut is None else tuple(_numbered(graph, cut))
    model.check_cut(chosen)
    costs = tuple(sum(seconds[low:high]) for low, high in itertools.pairwise((0, *chosen, len(seconds))))
    with trial.computing():
        built = build_module(trial.module, trial.config, trial.seed)
        whole = gradients_of(built, batch, trial.precision, dropout=trial.dropout)
    kept = _compare(graph, model, chosen, batch, trial.seed, trial.precision, whole)
    return ExaminedGraph(model, chosen, costs, kept, workloads)


def measure_graph(trial: ModuleTrial) -> MeasuredGraph:
    """Export a module, and measure what its operators take and keep of one microbatch. Raises ModelError."""
    graph = trial.graph()
    model = graph.describe(trial.module, trial.config, trial.items)
    with trial.computing():
        return MeasuredGraph(model, tuple(measure(graph, trial.batch)), measure_kept(graph, model, trial.batch))


def _numbered(graph: OperatorGraph, cut: Sequence[int] | Sequence[str]) -> list[int]:
    """Return a cut as operators: a submodule's name stands for the first operator that it calls. Raises ModelError."""
    first: dict[str, int] = {}
    for number, node in enumerate(graph.operators):
        parts = where(node).split(".")
        for length in range(1, len(parts) + 1):
            first.setdefault(".".join(parts[:length]), number)
    for place in cut:
        if isinstance(place, str) and place not in first:
            raise ModelError(f"model.cut names {place!r}, which calls no operator{did_you_mean(place, first)}")
    return [first[place] if isinstance(place, str) else place for place in cut]


def _planned(model: GraphModel, seconds: Sequence[float], stages: int, plan: Planner) -> tuple[int, ...]:
    if stages == 1:
        return ()
    for places in allowed_places(model):
        found = plan(seconds, model.crossing, places, parameters_before(model), stages) if places else None
        if found is not None:
            return found
    raise ModelError(f"{stages} stages asked of model.module = {model.module!r}: its graph cannot be cut into so many")


def _compare(
    graph: OperatorGraph,
    model: GraphModel,
    cut: tuple[int, ...],
    batch: Mapping[str, Tensor],
    seed: int,
    precision: str,
    whole: tuple[float, Mapping[str, Tensor]],
) -> tuple[int, ...]:
    """Run one microbatch through all stages; return the bytes that each of them keeps.

    whole: the loss and the gradients of the module itself. Raises ModelError where they differ: then the graph is not
    what the module computes.
    """
    name, (wanted, gradients) = f"model.module = {model.module!r}", whole
    stages = [GraphStage(graph, model, cut, n, torch.device("cpu"), None, drops=True) for n in range(len(cut) + 1)]
    runners = [StageRunner(stage, precision) for stage in stages]
    kept: list[int] = []
    entered = GraphInput(None, batch)
    for stage, runner in zip(stages, runners, strict=True):
        stage.set_values(graph.values)
        kept.append(runner.activation_bytes(entered, DrawKey(seed, 0, 0)))
        stage.drops = False  # from here on it is compared with the module without dropout
        if not stage.last:
            boundary = runner.forward(0, entered)
            if not finite(boundary):
                place = cut[stage.layout.stage]
                raise ModelError(f"{name}: a value that is not finite crosses the cut before {place}; cut it elsewhere")
            entered = GraphInput(boundary, batch)
    loss, _, gradient = runners[-1].loss(0, entered, torch.zeros(model.items))
    if not math.isfinite(loss) or not math.isclose(loss, wanted, rel_tol=1e-3, abs_tol=1e-5):
        raise ModelError(f"{name}: cut into stages its loss is {loss}, and {wanted} by itself")
    for number in range(len(cut) - 1, -1, -1):
        if gradient is None:
            raise ModelError(f"{name}: no gradient flows back from stage {number + 1}; cut it elsewhere")
        gradient = runners[number].backward(0, gradient)
    found: dict[str, Tensor] = {}
    for stage in stages:
        for key, _, own in stage.named_parameters():
            assert own is not None, "nothing is rounded"
            found[key] = own if key not in found else found[key] + own
    _refuse_others(found, gradients, precision, name)
    return tuple(kept)


def _refuse_others(found: Mapping[str, Tensor], gradients: Mapping[str, Tensor], precision: str, name: str) -> None:
    """Raise ModelError where a gradient of the stages is not that of the module itself."""
    # A gradient may be a rounding error of larger ones alone: that of a bias before a batch normalisation is. In bf16
    # the gradients of a parameter's uses, or of a tensor's, are rounded in another order.
    largest = max((float(each.abs().max()) for each in gradients.values()), default=0.0)
    relative, of_largest = (1e-2, 1e-4) if precision == "fp32" else (5e-2, 1e-2)
    for key, own in found.items():
        other = gradients.get(key, torch.zeros_like(own))
        if not torch.allclose(own, other, rtol=relative, atol=of_largest * largest):
            raise ModelError(f"{name}: cut into stages the gradient of {key} is another one than by itself")
