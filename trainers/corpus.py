"""The token cache: a source is tokenized once, into one flat file, which is memory-mapped ever after."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3
import numpy as np

from swarmflow.activity import doing
from swarmflow.errors import DataError
from swarmflow.files import readable_size, replacing
from trainers.sources import CorpusSource, Piece
from trainers.tokens import Tokenizer

_log = logging.getLogger(__name__)

_FORMAT = "swarmflow tokens 1"
# Measured with byte-level BPE: 4 MiB take 200 MiB of memory more than 1 MiB do, and are no faster on two cores.
_BATCH_BYTES = 2**20
_BATCH_PIECES = 1024
_ABANDONED_AFTER_S = 86_400.0
_DRAFT = re.compile(r"[0-9a-f]{32}\.(bin|json)\.[0-9a-f]{8}\.tmp")


@dataclass(frozen=True)
class TokenCache:
    """The tokens of a source, mapped from the disk."""

    tokens: np.ndarray[Any, Any]  # integer [n]
    digest: str  # BLAKE3 of the file: equal wherever the tokens are


def open_cache(source: CorpusSource, tokenizer: Tokenizer, cache_dir: Path) -> TokenCache:
    """Return the source's tokens, from the cache; it is built first where it does not have them.

    The files' names carry the source's identity and the tokenizer, so a changed source is another cache. Processes
    that build the same one at once write the same bytes, each to a file of its own that is then renamed into place.

    Raises DataError: nothing in the source, text that cannot be tokenized, no room or no right to write.
    """
    identity = json.dumps([_FORMAT, tokenizer.digest, *source.identity])
    stem = cache_dir / blake3.blake3(identity.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    dtype = _dtype(tokenizer.vocab_size)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        cache = _opened(stem, dtype)
        if cache is None:
            _log.info("tokenizing %s into %s", source.name, cache_dir)
            remove_abandoned(cache_dir)
            _build(source, tokenizer, dtype, stem)
            cache = _opened(stem, dtype)
    except OSError as error:
        raise DataError(
            f"cannot write the token cache in {cache_dir}: {error.strerror}; make room there or choose another folder"
        ) from error
    if cache is None:
        raise DataError(f"the token cache in {cache_dir} was changed by somebody while it was built; start again")
    return cache


@dataclass(frozen=True)
class Sample:
    """The size of the start of a source."""

    size_bytes: int
    tokens: int
    whole: bool  # the start is all of it


def sample(source: CorpusSource, tokenizer: Tokenizer, most_bytes: int) -> Sample:
    """Tokenize the start of a source and keep nothing. Raises DataError, as `open_cache`, for what is read."""
    size = tokens = 0
    for batch in _batches(source.pieces()):
        if size >= most_bytes:
            return Sample(size, tokens, False)
        size += sum(len(piece.data) for piece in batch)
        tokens += sum(len(ids) for ids in _encoded(tokenizer, batch))
    if tokens == 0:
        raise DataError(f"{source.name} holds no text")
    return Sample(size, tokens, True)


def _dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest little-endian unsigned type that holds every id."""
    return np.dtype("u1" if vocab_size <= 2**8 else "<u2" if vocab_size <= 2**16 else "<u4")


def _opened(stem: Path, dtype: np.dtype[Any]) -> TokenCache | None:
    """Return the cache under this name, or None where there is no whole one."""
    try:
        facts = json.loads(stem.with_suffix(".json").read_bytes())
        count, digest = facts["tokens"], facts["digest"]
        if stem.with_suffix(".bin").stat().st_size != count * dtype.itemsize:
            return None
        return TokenCache(np.memmap(stem.with_suffix(".bin"), dtype=dtype, mode="r", shape=(count,)), digest)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _build(source: CorpusSource, tokenizer: Tokenizer, dtype: np.dtype[Any], stem: Path) -> None:
    hasher = blake3.blake3()
    count = size = 0

    def progress() -> str:
        return f"{readable_size(size)}, {count:,} tokens so far"

    with replacing(stem.with_suffix(".bin")) as file, doing(f"tokenizing {source.name}", progress):
        for batch in _batches(source.pieces()):
            size += sum(len(piece.data) for piece in batch)
            for ids in _encoded(tokenizer, batch):
                data = ids.astype(dtype, copy=False).data.cast("B")
                hasher.update(data)
                file.write(data)
                count += len(ids)
        if count == 0:
            raise DataError(f"{source.name} holds no text")
    with replacing(stem.with_suffix(".json")) as file:
        file.write(json.dumps({"tokens": count, "digest": hasher.hexdigest(), "source": source.name}).encode())


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Return batches of a megabyte: short records are tokenized many at a time."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.data)
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_PIECES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encoded(tokenizer: Tokenizer, batch: list[Piece]) -> list[np.ndarray[Any, Any]]:
    try:
        return tokenizer.encode([piece.data for piece in batch])
    except UnicodeDecodeError as error:
        where = next(piece.where for piece in batch if piece.data == error.object)
        raise DataError(f'{where} is not UTF-8 text; convert it, or use data.tokenizer = "bytes"') from error


def remove_abandoned(cache_dir: Path) -> None:
    """Remove the files of killed builders; a living one writes often."""
    for path in cache_dir.glob("*.tmp"):
        try:
            if _DRAFT.fullmatch(path.name) and time.time() - path.stat().st_mtime > _ABANDONED_AFTER_S:
                path.unlink()
        except FileNotFoundError:
            continue
