"""From RUN.toml to the run's manifest: the model and its cut."""

from __future__ import annotations

import itertools
import secrets

from swarmflow import __version__
from swarmflow.compute.examine import examine
from swarmflow.compute.families import model_config, to_config
from swarmflow.compute.layout import TIED, check_cut, stage_layout
from swarmflow.compute.partition import Costs, block_count, plan_cut
from swarmflow.compute.weights import has_weights
from swarmflow.config import RunConfig, fingerprint
from swarmflow.errors import ModelError
from swarmflow.manifest import Manifest
from trainers.data import Corpus, check_vocabulary


def read_model(config: RunConfig) -> dict[str, object]:
    """The model's config.json, from its folder or from RUN.toml. Raises ModelError."""
    if config.model.path is not None:
        return model_config(config.model.path)
    return model_config(dict(config.model.config or {}))


def vocabulary(model: dict[str, object]) -> int:
    """The model's vocab_size. Raises ModelError."""
    size = model.get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise ModelError(f"the model's configuration has vocab_size = {size!r}; it must be a number above 0")
    return size


def new_manifest(config: RunConfig, corpus: Corpus, run_id: str | None = None) -> Manifest:
    """Everything that the run is, decided once. Measures the cut where RUN.toml leaves it open.

    run_id: of the run that had not begun yet and is another one now; a new run gets an id of its own.

    Raises ModelError; DataError when the tokenizer is larger than the model's vocabulary.
    """
    model = read_model(config)
    check_vocabulary(config.data.tokenizer, corpus.vocab_size, vocabulary(model))
    train, optimizer = config.train, config.optimizer
    cut, costs = _cut(config, model)
    return Manifest(
        run_id=run_id or secrets.token_hex(8), name=config.run.name, software=__version__, model=model, cut=cut,
        costs=costs,
        dropout=config.model.dropout, from_seed=config.model.path is None or not has_weights(config.model.path),
        seed=train.seed, vocab_size=vocabulary(model), hidden_size=_hidden_size(model), seq_len=config.data.seq_len,
        microbatch_sequences=train.microbatch_sequences, microbatches=train.microbatches, optimizer=optimizer.name,
        betas=optimizer.betas, momentum=optimizer.momentum, eps=optimizer.eps, weight_decay=optimizer.weight_decay,
        precision=train.precision, accumulate=train.accumulate, codec=train.codec, router=train.router,
        tied=TIED in stage_layout(model, cut, 0).groups, tokenizer=config.data.tokenizer, corpus=corpus.digest,
        config=fingerprint(config),
    )  # fmt: skip


def _cut(config: RunConfig, model: dict[str, object]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    stages = config.model.stages
    if config.model.cut is not None:
        check_cut(config.model.cut, block_count(model))
    costs = examine(model, measure=config.model.cut is None and stages > 1)
    if costs is None:
        return tuple(config.model.cut or ()), ()
    cut = plan_cut(model, stages, costs)
    return cut, _stage_costs(costs, cut, block_count(model))


def _stage_costs(costs: Costs, cut: tuple[int, ...], blocks: int) -> tuple[float, ...]:
    edges = (0, *cut, blocks)
    seconds = [costs.block_s * (high - low) for low, high in itertools.pairwise(edges)]
    seconds[0] += costs.embedding_s
    seconds[-1] += costs.head_s
    return tuple(seconds)


def _hidden_size(model: dict[str, object]) -> int:
    return int(to_config(model).hidden_size)
