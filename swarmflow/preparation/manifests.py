"""The manifest of a run: RUN.toml and its model or module, cut into stages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from swarmflow import __version__
from swarmflow.compute.families import stored_dtype, to_config
from swarmflow.compute.flat import rounding_of
from swarmflow.compute.graphs.description import graph_as_json
from swarmflow.compute.graphs.examine import ExaminedGraph
from swarmflow.compute.layout import TIED, StageLayout, stage_layout
from swarmflow.compute.partition import BlockCosts, block_count, plan_cut
from swarmflow.compute.weights_folder import has_weights
from swarmflow.config import EXPORT_DTYPES, RunConfig, fingerprint
from swarmflow.core.protocol.types import SharedWeights
from swarmflow.errors import ModelError
from swarmflow.manifest import Manifest
from swarmflow.preparation.model_check import CheckedModel


def manifest_of(config: RunConfig, model: CheckedModel, corpus_digest: str, run_id: str) -> Manifest:
    """Return the manifest of a run with this model and these data. Raises ModelError."""
    cut, costs = _cut(config, model)
    boundary = config.model.parsed_boundary
    layouts = [stage_layout(model.config, cut, stage, boundary=boundary) for stage in range(len(cut) + 1)]
    hidden_size = int(to_config(model.config).hidden_size)
    described = replace(
        _settings_of(config, corpus_digest, run_id),
        model=model.config,
        from_seed=config.model.path is None or not has_weights(config.model.path) or config.adapters is not None,
        vocab_size=model.vocab_size,
        hidden_size=hidden_size,
        seq_len=config.data.seq_len,
        tokenizer=config.data.tokenizer,
        boundary=boundary,
        beside=layouts[0].beside,
        shared=_shared(config, layouts),
        computed_parameters=tuple(layout.computed_parameters for layout in layouts),
        ignored_targets=config.data.of_records,
        positions=config.data.packing == "bfd",
        empty_places=layouts[0].beside > 0 and config.data.packing != "wrapped",
    )
    # Where the cut is given, nothing is measured: a stage computes about as much as its weights are.
    estimated = tuple(float(max(1, parameters)) for parameters in described.computed_parameters)
    return _cut_into(described, cut, costs or estimated, layouts)


def graph_manifest_of(config: RunConfig, examined: ExaminedGraph, corpus_digest: str, run_id: str) -> Manifest:
    """Return the manifest of a run with this module and these data. Raises ModelError."""
    model, cut = examined.model, examined.cut
    layouts = [model.layout(cut, stage) for stage in range(len(cut) + 1)]
    widest = max((model.boundary(cut, number) for number in range(len(cut))), default=0)
    described = replace(
        _settings_of(config, corpus_digest, run_id),
        model=graph_as_json(model),
        hidden_size=-(-widest // model.items),
        batch_words=sum(each.words for each in model.inputs),
        microbatch_gigaflops=examined.gigaflops,
    )
    return _cut_into(described, cut, examined.costs, layouts)


def _settings_of(config: RunConfig, corpus_digest: str, run_id: str) -> Manifest:
    """Return a manifest with what RUN.toml says, and without its model."""
    train, optimizer = config.train, config.optimizer
    return Manifest(
        run_id=run_id,
        name=config.run.name,
        software=__version__,
        model={},
        cut=(),
        costs=(),
        parameters=(),
        dropout=config.model.dropout,
        from_seed=True,
        seed=train.seed,
        vocab_size=0,
        hidden_size=0,
        seq_len=1,
        microbatch_sequences=train.microbatch_sequences,
        microbatches=train.microbatches,
        optimizer=optimizer.name,
        betas=optimizer.betas,
        momentum=optimizer.momentum,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        precision=train.precision,
        accumulate=train.accumulate,
        codec=train.codec,
        compression_ratio=train.compression_ratio or 0.0,
        reduce_codec=train.reduce_codec,
        delay=train.delay,
        router=train.router,
        tied=False,
        tokenizer="",
        corpus=corpus_digest,
        export_dtype=_export_dtype(config),
        config=fingerprint(config),
        timeouts=config.timeouts,
        state_bits=optimizer.state_bits,
    )


def _shared(config: RunConfig, layouts: Sequence[StageLayout]) -> tuple[SharedWeights, ...]:
    """Return the weights of blocks that the edges of stages separate. Raises ModelError for too many stages of one."""
    spread = {group: stages for layout in layouts for group, stages in layout.spread.items() if group != TIED}
    shared = tuple(itertools.starmap(SharedWeights, spread.items()))
    train, most = config.train, max((len(weights.stages) for weights in shared), default=1)
    rounding = rounding_of(train.accumulate, train.reduce_codec, train.microbatches)
    if rounding is not None and most > rounding.stages_max:
        raise ModelError(
            f"{most} stages have blocks that share their weights, and at most {rounding.stages_max} add up their "
            f"gradients with {train.microbatches} microbatches; cut the model into fewer stages, give more groups "
            'in model.shared_blocks, or set train.accumulate = "fp32" and train.reduce_codec = "none"'
        )
    return shared


def _cut_into(
    described: Manifest, cut: tuple[int, ...], costs: tuple[float, ...], layouts: Sequence[StageLayout]
) -> Manifest:
    parameters = tuple(layout.parameters for layout in layouts)
    return replace(described, cut=cut, costs=costs, parameters=parameters, tied=TIED in layouts[0].groups)


def _export_dtype(config: RunConfig) -> str:
    """Return the dtype of a run's exports: fp32 for fresh weights, and for a source in a dtype that is not offered."""
    if config.run.export_dtype != "source":
        return config.run.export_dtype
    if config.adapters is not None:
        return "float32"
    folder = config.model.path
    source = stored_dtype(folder) if folder is not None and has_weights(folder) else None
    return source if source in EXPORT_DTYPES else "float32"


def _cut(config: RunConfig, model: CheckedModel) -> tuple[tuple[int, ...], tuple[float, ...]]:
    costs = model.examined.costs
    if costs is None:
        return config.model.numbered_cut or (), ()
    cut = plan_cut(model.config, config.model.stages, costs)
    return cut, _stage_costs(costs, cut, block_count(model.config))


def _stage_costs(costs: BlockCosts, cut: tuple[int, ...], blocks: int) -> tuple[float, ...]:
    edges = (0, *cut, blocks)
    seconds = [costs.block_s * (high - low) for low, high in itertools.pairwise(edges)]
    seconds[0] += costs.embedding_s
    seconds[-1] += costs.head_s
    return tuple(seconds)
