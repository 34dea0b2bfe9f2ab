"""From RUN.toml and its data to the manifest of a new run."""

from __future__ import annotations

import logging

from swarmflow.compute.demands import stage_demands
from swarmflow.config import RunConfig
from swarmflow.errors import DataError, raise_all
from swarmflow.files import readable_size
from swarmflow.manifest import Manifest
from swarmflow.preparation.manifests import manifest_of
from swarmflow.preparation.model_check import check_model
from trainers.data import Corpus, check_vocabulary

log = logging.getLogger("swarmflow")


def new_manifest(config: RunConfig, corpus: Corpus, run_id: str) -> Manifest:
    """Return the manifest of a run. Measures the cut where RUN.toml leaves it open.

    Raises SwarmflowError with all problems of the model and of its tokenizer.
    """
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
    for stage in stage_demands(manifest, model.examined.activations):
        memory, each, sent = (readable_size(n) for n in (stage.memory_bytes, stage.microbatch_bytes, stage.sent_bytes))
        log.info(
            "stage %d: %d blocks; a peer needs about %s of memory and %s more a microbatch, and sends %s a microbatch",
            stage.stage,
            len(stage.blocks),
            memory,
            each,
            sent,
        )
    return manifest
