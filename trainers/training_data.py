"""The data of a run, whatever it trains: text for a language model, or records for a module."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from swarmflow.config import RunConfig
from trainers.data import Corpus, open_corpus
from trainers.records import Records, open_records

TrainingData: TypeAlias = Corpus | Records


def open_data(config: RunConfig, vocab_size: int | None, cache_dir: Path) -> TrainingData:
    """Open the data of a run. vocab_size, cache_dir: see `open_corpus`. Raises DataError, ModelError."""
    return open_corpus(config, vocab_size, cache_dir) if config.model.module is None else open_records(config)
