"""From RUN.toml and its data to the manifest of a new run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch

from swarmflow.activity import doing
from swarmflow.compute.base_weights import base_roots
from swarmflow.compute.demands import StageDemands, graph_demands, stage_demands
from swarmflow.compute.graphs.examine import ExaminedGraph
from swarmflow.config import RunConfig
from swarmflow.errors import DataError, raise_all
from swarmflow.files import readable_size
from swarmflow.manifest import Manifest
from swarmflow.preparation.graph_check import FirstBatch, check_graph
from swarmflow.preparation.manifests import graph_manifest_of, manifest_of
from swarmflow.preparation.model_check import check_model
from trainers.data import check_vocabulary
from trainers.records import Records, open_records
from trainers.training_data import TrainingData

log = logging.getLogger("swarmflow")


def new_manifest(config: RunConfig, corpus: TrainingData, run_id: str) -> Manifest:
    """Return the manifest of a run. Measures the cut where RUN.toml leaves it open.

    Raises SwarmflowError with all problems of the model and of its tokenizer.
    """
    if isinstance(corpus, Records):
        examined = examined_module(config, corpus)
        manifest = graph_manifest_of(config, examined, corpus.digest, run_id)
        _log_demands(graph_demands(manifest, examined.activation_bytes), "operators")
        return manifest
    checked = check_model(config)
    problems = list(checked.problems)
    try:
        check_vocabulary(config.data.tokenizer, corpus.vocab_size, checked.vocab_size)
    except DataError as error:
        problems.append(error)
    raise_all(problems)
    model = checked.model
    assert model is not None, "a model that cannot be used has a problem"
    manifest = manifest_of(config, model, corpus.digest, run_id)
    if config.adapters is not None:
        assert config.model.path is not None, "checked with the model"
        with doing(f"hashing the weights in {config.model.path}"):
            manifest = replace(manifest, base=base_roots(manifest, config.model.path))
    _log_demands(stage_demands(manifest, model.examined.activations), "blocks")
    return manifest


def examined_module(config: RunConfig, records: Records) -> ExaminedGraph:
    """Return what is found out of a run's module with its first microbatch. Raises ModelError."""
    return check_graph(config, _first(records))


def first_batch(config: RunConfig) -> FirstBatch:
    """Read the first microbatch of a run of a module. Raises DataError, ModelError. An entry point: for planning."""
    return _first(open_records(config))


def _first(records: Records) -> FirstBatch:
    batch = {name: torch.from_numpy(array.copy()) for name, array in records.first.items()}
    return FirstBatch(records.inputs, batch)


def _log_demands(demands: Sequence[StageDemands], parts: str) -> None:
    for stage in demands:
        memory, each, sent = (readable_size(n) for n in (stage.memory_bytes, stage.microbatch_bytes, stage.sent_bytes))
        log.info(
            "stage %d: %d %s; a peer needs about %s of memory and %s more a microbatch, and sends %s a microbatch",
            stage.stage,
            len(stage.blocks),
            parts,
            memory,
            each,
            sent,
        )
