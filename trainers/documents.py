"""Records as documents: the tokens of each, and which of them count in the loss.

A document is its tokens in order. In its array, int32, a token that counts in the loss stands as its id, and one that
does not as -1 - id. The first token never counts: nothing comes before it that could predict it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from swarmflow.errors import DataError
from trainers.chat import ChatRenderer
from trainers.tokens import Tokenizer

Document: TypeAlias = npt.NDArray[np.int32]
Render: TypeAlias = Callable[[str, object], Document]
"""(place of a record, record) -> its document. Raises DataError, which names the place."""


def as_document(ids: npt.NDArray[Any], counts: npt.NDArray[np.bool_]) -> Document:
    """Return a document of ids [n], of which those count in the loss that `counts` [n] says, but for the first."""
    signed = np.where(counts, ids, -1 - ids.astype(np.int32)).astype(np.int32)
    signed[:1] = -1 - ids[:1].astype(np.int32)
    return signed


def ids_of(document: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the ids of a document's tokens."""
    return np.where(document < 0, -1 - document, document)


def targets_of(document: npt.NDArray[np.int32], ignored: int) -> npt.NDArray[np.int32]:
    """Return the ids of a document's tokens that count in the loss, and `ignored` for the others."""
    return np.where(document < 0, np.int32(ignored), document)


def renderer(form: str, tokenizer: Tokenizer, name: str, text_field: str) -> tuple[Render, str]:
    """Return what makes documents of records, and a text that changes when its results do.

    form: data.format. name: data.tokenizer, for messages. Raises DataError for a tokenizer without a chat template.
    """
    if form == "chat":
        chat = ChatRenderer.of(tokenizer, name)
        return lambda where, record: as_document(*chat.render(where, _fields(where, record))), chat.digest
    ends = f"{tokenizer.first_token} {tokenizer.last_token}"
    if form == "prompt":
        return lambda where, record: _answered(where, _fields(where, record), tokenizer), f"prompt {ends}"
    return lambda where, record: _text(
        where, _fields(where, record), text_field, tokenizer
    ), f"text {text_field} {ends}"


def _answered(where: str, record: Mapping[str, object], tokenizer: Tokenizer) -> Document:
    """Return a prompt and its completion, each tokenized alone, as a model gets and continues it."""
    prompt, completion = (_encoded(where, field, record, tokenizer) for field in ("prompt", "completion"))
    head = _ends(tokenizer.first_token), prompt
    tail = completion, _ends(tokenizer.last_token)
    ids = np.concatenate((*head, *tail))
    return as_document(ids, np.arange(len(ids)) >= sum(map(len, head)))


def _text(where: str, record: Mapping[str, object], field: str, tokenizer: Tokenizer) -> Document:
    """Return a text, all of whose tokens count."""
    parts = _ends(tokenizer.first_token), _encoded(where, field, record, tokenizer), _ends(tokenizer.last_token)
    ids = np.concatenate(parts)
    return as_document(ids, np.ones(len(ids), dtype=np.bool_))


def _ends(token: int | None) -> npt.NDArray[np.int64]:
    return np.asarray([] if token is None else [token], dtype=np.int64)


def _fields(where: str, record: object) -> Mapping[str, object]:
    if not isinstance(record, Mapping):
        raise DataError(f"{where} is not an object")
    return record


def _encoded(where: str, field: str, record: Mapping[str, object], tokenizer: Tokenizer) -> npt.NDArray[Any]:
    if field not in record:
        fields = ", ".join(sorted(map(str, record))) or "none"
        raise DataError(f"{where} has no field {field!r} (its fields: {fields})")
    text = record[field]
    if not isinstance(text, str):
        raise DataError(f"{where}: field {field!r} is no text but {type(text).__name__}")
    try:
        return tokenizer.encode([text.encode("utf-8")])[0]
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: field {field!r} holds half of a surrogate pair: no text") from error
