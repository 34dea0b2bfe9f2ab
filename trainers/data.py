"""The data of a run: the corpus that RUN.toml names, as the microbatches of each step by the data rule."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import blake3
import numpy as np
import numpy.typing as npt

from swarmflow.config import DataSection, RunConfig
from swarmflow.errors import DataError
from swarmflow.manifest import Manifest
from trainers.corpus import open_cache
from trainers.document_cache import Documents, open_documents
from trainers.documents import Render, renderer
from trainers.order import SequenceOrder
from trainers.packing import PackedRows, pack
from trainers.sources import (
    CorpusSource,
    RecordSource,
    dataset_source,
    file_record_source,
    file_source,
    set_record_source,
)
from trainers.tokens import Tokenizer, open_tokenizer

Batch: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]

GENERATION = "generation_config.json"  # as transformers names it


class Rows(Protocol):
    """Rows of T tokens, T = data.seq_len, which a corpus gives as microbatches."""

    @property
    def count(self) -> int:
        """Their number."""

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return the inputs of some rows, int32 [B, T], and what travels with them: targets [B, T] at least."""


@dataclass(frozen=True)
class TextRows:
    """A text, one token after another: row k has the inputs tokens[k*T : (k+1)*T] and the targets one further."""

    tokens: npt.NDArray[Any]
    seq_len: int

    @property
    def count(self) -> int:
        """Return S = floor((tokens - 1) / T)."""
        return sequences_of(self.tokens, self.seq_len)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return inputs and targets of some rows: int32 [B, T] each."""
        return _batch(self.tokens, rows, self.seq_len)


@dataclass(frozen=True)
class Tokenized:
    """Rows, with a digest of all that they depend on: equal wherever data, tokenizer and seq_len are."""

    rows: Rows
    tokens: int
    digest: str
    summary: str


class Corpus:
    """The training rows of a run, and its validation rows where it has some.

    `trainers.order` decides which of them a microbatch holds.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        order: SequenceOrder,
        training: Tokenized,
        validation: Tokenized | None = None,
        source: Path | None = None,
    ) -> None:
        """order: over the rows of `training`. source: the folder of the model that the run begins from."""
        self._tokenizer = tokenizer
        self._source = source
        self._order = order
        self._training = training.rows
        self._validation = None if validation is None else validation.rows
        self.tokens = training.tokens
        self.sequences = order.sequences
        self.summary = training.summary
        self.digest = training.digest
        self.validation_digest = None if validation is None else validation.digest

    @property
    def vocab_size(self) -> int:
        """The size of the tokenizer's vocabulary: every id is below it."""
        return self._tokenizer.vocab_size

    def fit(self, manifest: Manifest) -> None:
        """Give rows as a run takes them; every cut of its model takes the same."""
        self._training = _marked(self._training, manifest)
        self._validation = None if self._validation is None else _marked(self._validation, manifest)

    def microbatch(self, step: int, index: int) -> Batch:
        """Return microbatch `index` of step `step` (both from 0), as `Rows.batch`.

        Raises ValueError for an index that no step has.
        """
        return self._training.batch(self._order.of_microbatch(step, index))

    def validation(self) -> Iterator[Batch]:
        """Return the validation rows in order, B at a time, as `Rows.batch`; the last ones may be fewer.

        Nothing where the run has no validation data.
        """
        if self._validation is None:
            return
        count, width = self._validation.count, self._order.microbatch_sequences
        for first in range(0, count, width):
            yield self._validation.batch(range(first, min(first + width, count)))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, for people to read."""
        return self._tokenizer.decode(ids)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens added."""
        return [int(token) for token in self._tokenizer.encode([text.encode("utf-8")])[0]]

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer's files into a model's folder, for plain `transformers.AutoTokenizer`.

        With them, how the model that the run began from generates: a chat model's stop tokens may be there alone.
        """
        self._tokenizer.save(folder)
        if self._source is not None and (self._source / GENERATION).is_file():
            shutil.copyfile(self._source / GENERATION, folder / GENERATION)


def open_corpus(config: RunConfig, vocab_size: int | None, cache_dir: Path) -> Corpus:
    """Open the data of a run, tokenized into `cache_dir` first where that was not done yet.

    vocab_size: the model's, None where it is checked later.

    Raises DataError: no data, too little, unreadable, a tokenizer that is missing or larger than the model's
    vocabulary, no room for the cache.
    """
    data, train = config.data, config.train
    sources = record_sources_of(data) if data.of_records else sources_of(data)
    tokenizer = open_tokenizer(data.tokenizer)
    check_vocabulary(data.tokenizer, tokenizer.vocab_size, vocab_size)
    parts = [_tokenized(source, data, tokenizer, cache_dir) for source in sources]
    order = SequenceOrder(
        sequences=parts[0].rows.count,
        microbatches=train.microbatches,
        microbatch_sequences=train.microbatch_sequences,
        seed=train.seed if data.order == "shuffled" else None,
    )
    validation = parts[1] if len(parts) > 1 else None
    return Corpus(tokenizer, order, parts[0], validation, config.model.path)


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


def record_sources_of(data: DataSection) -> list[RecordSource]:
    """Return the same as records. Raises DataError."""
    held_out = [] if data.validation_path is None else [file_record_source(data.validation_path)]
    if data.dataset is not None:
        return [set_record_source(data.dataset, data.dataset_config, data.split), *held_out]
    if data.path is None:
        raise DataError("the run names no data; give data.path or data.dataset")
    return [file_record_source(data.path), *held_out]


def document_renderer(data: DataSection, tokenizer: Tokenizer) -> tuple[Render, str]:
    """Return what makes documents of the records of a run, and what names it. Raises DataError."""
    return renderer(data.format, tokenizer, data.tokenizer, data.text_field)


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


def _tokenized(
    source: CorpusSource | RecordSource, data: DataSection, tokenizer: Tokenizer, cache_dir: Path
) -> Tokenized:
    """Raises DataError."""
    if isinstance(source, CorpusSource):
        cache = open_cache(source, tokenizer, cache_dir)
        check_enough(source.name, len(cache.tokens), data.seq_len)
        text = TextRows(cache.tokens, data.seq_len)
        summary = f"{len(cache.tokens)} tokens, {text.count} sequences of {data.seq_len}"
        return Tokenized(text, len(cache.tokens), _digest(cache.digest, tokenizer, str(data.seq_len)), summary)
    render, identity = document_renderer(data, tokenizer)
    identity = f"{tokenizer.digest} {identity}"
    documents = open_documents(source, render, identity, tokenizer.vocab_size, cache_dir)
    try:
        rows = pack(documents, data.seq_len, data.packing, split=data.format == "text")
    except DataError as error:
        raise DataError(f"{source.name}: {error}") from error
    digest = _digest(documents.digest, tokenizer, f"{data.seq_len} {data.packing} {data.format}")
    return Tokenized(rows, len(documents.tokens), digest, described(documents, rows))


def described(documents: Documents, rows: PackedRows) -> str:
    """Return how many documents and rows there are, and what is lost of them."""
    lost = f"; {rows.cut:,} are cut short" if rows.cut else ""
    lost += f"; {rows.left_out:,} have no target within a row and are left out" if rows.left_out else ""
    size = len(documents.lengths), len(documents.tokens), rows.count
    return f"{size[0]:,} records, {size[1]:,} tokens, {size[2]:,} rows of {rows.seq_len}{lost}"


def _marked(rows: Rows, manifest: Manifest) -> Rows:
    """Return rows that tell which of their places hold no token, if the run asks for that."""
    return replace(rows, marked=manifest.empty_places) if isinstance(rows, PackedRows) else rows


def _batch(tokens: npt.NDArray[Any], sequences: Sequence[int], seq_len: int) -> Batch:
    rows = np.empty((len(sequences), seq_len + 1), dtype=np.int32)
    for row, sequence in zip(rows, sequences, strict=True):
        row[:] = tokens[sequence * seq_len : (sequence + 1) * seq_len + 1]
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


def _digest(content: str, tokenizer: Tokenizer, how: str) -> str:
    return blake3.blake3(f"{content} {tokenizer.digest} {how}".encode()).hexdigest()
