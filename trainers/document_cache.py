"""The cache of documents: records are tokenized once, into two flat files, which are memory-mapped ever after."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import blake3
import numpy as np
import numpy.typing as npt

from swarmflow.activity import doing
from swarmflow.errors import DataError
from swarmflow.files import replacing
from trainers.corpus import remove_abandoned
from trainers.documents import Document, Render, ids_of
from trainers.sources import RecordSource

log = logging.getLogger("swarmflow")

_FORMAT = "swarmflow documents 1"


@dataclass(frozen=True)
class Documents:
    """The documents of a source, one after another.

    tokens: int32 [n], as `documents.as_document` writes them. lengths: int64 [documents]. digest: BLAKE3 of both, equal
    wherever the documents are.
    """

    tokens: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    digest: str


@dataclass(frozen=True)
class DocumentSample:
    """The documents of the first records. whole: these are all."""

    documents: int
    tokens: int
    targets: int
    whole: bool


def open_documents(source: RecordSource, render: Render, identity: str, vocab_size: int, cache_dir: Path) -> Documents:
    """Return the documents of a source, from the cache; it is built first where it does not have them.

    identity: changes when the results of `render` do. Processes that build the same cache at once write the same bytes,
    each to files of its own that are then renamed into place. Raises DataError: nothing in the source, a record that
    cannot be used (its place is named), a token that is not below vocab_size, no room or no right to write.
    """
    named = json.dumps([_FORMAT, identity, *source.identity])
    stem = cache_dir / blake3.blake3(named.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        found = _opened(stem)
        if found is None:
            log.info("tokenizing %s into %s", source.name, cache_dir)
            remove_abandoned(cache_dir)
            _build(source, render, vocab_size, stem)
            found = _opened(stem)
    except OSError as error:
        raise DataError(
            f"cannot write the token cache in {cache_dir}: {error.strerror}; make room there or choose another folder"
        ) from error
    if found is None:
        raise DataError(f"the token cache in {cache_dir} was changed by somebody while it was built; start again")
    return found


def sample_documents(source: RecordSource, render: Render, vocab_size: int, tokens_max: int) -> DocumentSample:
    """Make documents of the first records and keep nothing. Raises DataError, as `open_documents`."""
    documents = tokens = targets = 0
    for document in _rendered(source, render, vocab_size):
        if tokens >= tokens_max:
            return DocumentSample(documents, tokens, targets, False)
        documents, tokens = documents + 1, tokens + len(document)
        targets += int((document >= 0).sum())
    if not documents:
        raise DataError(f"{source.name} holds no record")
    return DocumentSample(documents, tokens, targets, True)


def _rendered(source: RecordSource, render: Render, vocab_size: int) -> Iterator[Document]:
    for where, record in source.records():
        document = render(where, record)
        if len(document) and int(ids_of(document).max()) >= vocab_size:
            raise DataError(f"{where} has a token that is not below the tokenizer's {vocab_size}")
        yield document


def _files(stem: Path) -> tuple[Path, Path, Path]:
    lengths = stem.with_name(blake3.blake3(f"{stem.name} lengths".encode()).hexdigest()[:32])
    return stem.with_suffix(".bin"), lengths.with_suffix(".bin"), stem.with_suffix(".json")


def _opened(stem: Path) -> Documents | None:
    """Return the cache under this name, or None where there is no whole one."""
    tokens_file, lengths_file, facts_file = _files(stem)
    try:
        facts = json.loads(facts_file.read_bytes())
        tokens, documents, digest = facts["tokens"], facts["documents"], facts["digest"]
        if (tokens_file.stat().st_size, lengths_file.stat().st_size) != (4 * tokens, 8 * documents):
            return None
        lengths = np.fromfile(lengths_file, dtype="<i8")
        if int(lengths.sum()) != tokens:
            return None
        return Documents(np.memmap(tokens_file, dtype="<i4", mode="r", shape=(tokens,)), lengths, digest)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _build(source: RecordSource, render: Render, vocab_size: int, stem: Path) -> None:
    tokens_file, lengths_file, facts_file = _files(stem)
    lengths: list[int] = []
    hasher, count = blake3.blake3(), 0

    def progress() -> str:
        return f"{len(lengths):,} records, {count:,} tokens so far"

    with ExitStack() as stack:
        stack.enter_context(doing(f"tokenizing {source.name}", progress))
        file = stack.enter_context(replacing(tokens_file))
        for document in _rendered(source, render, vocab_size):
            data = document.astype("<i4", copy=False).tobytes()
            hasher.update(data)
            file.write(data)
            lengths.append(len(document))
            count += len(document)
        if not count:
            raise DataError(f"{source.name} holds no record")
    sizes = np.asarray(lengths, dtype="<i8").tobytes()
    hasher.update(sizes)
    with replacing(lengths_file) as file:
        file.write(sizes)
    with replacing(facts_file) as file:
        facts = {"tokens": count, "documents": len(lengths), "digest": hasher.hexdigest(), "source": source.name}
        file.write(json.dumps(facts).encode())
