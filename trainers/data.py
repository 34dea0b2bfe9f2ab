"""The data of a run: the corpus that RUN.toml names, as the microbatches of each step by the data rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import blake3
import numpy as np
import numpy.typing as npt

from swarmflow.config import DataSection, RunConfig
from swarmflow.errors import DataError
from swarmflow.manifest import Manifest
from trainers.corpus import TokenCache, open_cache
from trainers.order import SequenceOrder
from trainers.sources import CorpusSource, dataset_source, file_source
from trainers.tokens import Tokenizer, open_tokenizer

Batch: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]


class Corpus:
    """The training sequences of a run, and its validation sequences where it has some.

    S = floor((tokens - 1) / T) sequences of T = seq_len tokens: sequence k has the inputs tokens[k*T : (k+1)*T] and
    the targets one further. `trainers.order` decides which of them a microbatch holds.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        seq_len: int,
        order: SequenceOrder,
        training: TokenCache,
        validation: TokenCache | None = None,
    ) -> None:
        """order: over the sequences of `training`, as many as `sequences_of` counts."""
        self._tokenizer = tokenizer
        self._seq_len = seq_len
        self._order = order
        self._training = training.tokens
        self._validation = None if validation is None else validation.tokens
        self.tokens = len(self._training)
        self.sequences = order.sequences
        self.summary = f"{self.tokens} tokens, {self.sequences} sequences of {seq_len}"
        # Of all that a batch depends on but the order: equal wherever data, tokenizer and seq_len are.
        self.digest = _digest(training, tokenizer, seq_len)
        self.validation_digest = None if validation is None else _digest(validation, tokenizer, seq_len)

    @property
    def vocab_size(self) -> int:
        """The size of the tokenizer's vocabulary: every id is below it."""
        return self._tokenizer.vocab_size

    def fit(self, manifest: Manifest) -> None:
        """Do nothing: every cut of a model takes the same microbatches."""

    def microbatch(self, step: int, index: int) -> Batch:
        """Return inputs and targets of microbatch `index` of step `step` (both from 0): int32 [B, T] each.

        Raises ValueError for an index that no step has.
        """
        return _batch(self._training, self._order.of_microbatch(step, index), self._seq_len)

    def validation(self) -> Iterator[Batch]:
        """Return the validation sequences in order, B at a time: int32 [B', T] each, B' < B in the last one at most.

        Nothing where the run has no validation data.
        """
        if self._validation is None:
            return
        count = sequences_of(self._validation, self._seq_len)
        width = self._order.microbatch_sequences
        for first in range(0, count, width):
            yield _batch(self._validation, range(first, min(first + width, count)), self._seq_len)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, for people to read."""
        return self._tokenizer.decode(ids)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens added."""
        return [int(token) for token in self._tokenizer.encode([text.encode("utf-8")])[0]]

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer's files into a model's folder, for plain `transformers.AutoTokenizer`."""
        self._tokenizer.save(folder)


def open_corpus(config: RunConfig, vocab_size: int | None, cache_dir: Path) -> Corpus:
    """Open the data of a run, tokenized into `cache_dir` first where that was not done yet.

    vocab_size: the model's, None where it is checked later.

    Raises DataError: no data, too little, unreadable, a tokenizer that is missing or larger than the model's
    vocabulary, no room for the cache.
    """
    data, train = config.data, config.train
    source = _source(data)
    held_out = None if data.validation_path is None else file_source(data.validation_path, data.text_field)
    tokenizer = open_tokenizer(data.tokenizer)
    check_vocabulary(data.tokenizer, tokenizer.vocab_size, vocab_size)
    training = _checked(open_cache(source, tokenizer, cache_dir), source, data.seq_len)
    validation = None
    if held_out is not None:
        validation = _checked(open_cache(held_out, tokenizer, cache_dir), held_out, data.seq_len)
    order = SequenceOrder(
        sequences=sequences_of(training.tokens, data.seq_len),
        microbatches=train.microbatches,
        microbatch_sequences=train.microbatch_sequences,
        seed=train.seed if data.order == "shuffled" else None,
    )
    return Corpus(tokenizer, data.seq_len, order, training, validation)


def check_vocabulary(tokenizer: str, size: int, vocab_size: int | None) -> None:
    """Raises DataError when a tokenizer of `size` tokens is larger than the model's vocabulary, if that is known."""
    if vocab_size is not None and size > vocab_size:
        raise DataError(
            f"tokenizer {tokenizer} has {size} tokens, more than the model's vocab_size = {vocab_size}; "
            "raise vocab_size or use a smaller tokenizer"
        )


def sources_of(data: DataSection) -> list[CorpusSource]:
    """Return the training data, and the validation data or None. Raises DataError where there is no data."""
    held_out = [] if data.validation_path is None else [file_source(data.validation_path, data.text_field)]
    return [_source(data), *held_out]


def check_enough(name: str, tokens: int, seq_len: int) -> None:
    """Raises DataError when so many tokens are not one sequence."""
    if tokens <= seq_len:
        raise DataError(
            f"{name} holds {tokens} tokens: one sequence needs data.seq_len + 1 = {seq_len + 1}; "
            "give more text or a smaller seq_len"
        )


def sequences_of(tokens: npt.NDArray[Any], seq_len: int) -> int:
    """Return how many sequences of seq_len tokens there are: each needs one more token after it, as its last target."""
    return (len(tokens) - 1) // seq_len


def _source(data: DataSection) -> CorpusSource:
    if data.dataset is not None:
        return dataset_source(data.dataset, data.dataset_config, data.split, data.text_field)
    if data.path is None:
        raise DataError("the run names no data; give data.path or data.dataset")
    return file_source(data.path, data.text_field)


def _checked(cache: TokenCache, source: CorpusSource, seq_len: int) -> TokenCache:
    check_enough(source.name, len(cache.tokens), seq_len)
    return cache


def _batch(tokens: npt.NDArray[Any], sequences: Sequence[int], seq_len: int) -> Batch:
    rows = np.empty((len(sequences), seq_len + 1), dtype=np.int32)
    for row, sequence in zip(rows, sequences, strict=True):
        row[:] = tokens[sequence * seq_len : (sequence + 1) * seq_len + 1]
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


def _digest(cache: TokenCache, tokenizer: Tokenizer, seq_len: int) -> str:
    return blake3.blake3(f"{cache.digest} {tokenizer.digest} {seq_len}".encode()).hexdigest()
