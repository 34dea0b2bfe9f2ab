"""Tokenizers: text to token ids and back, and the files that plain transformers loads beside an exported model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import blake3
import numpy as np

from swarmflow.errors import DataError
from swarmflow.suggestions import did_you_mean
from trainers.hub import hub_in_reach, one_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HubTokenizer
    from transformers import PreTrainedTokenizerBase

_OS_ERROR = re.compile(r"\(os error (\d+)\)$")


class Tokenizer(Protocol):
    """Text to ids 0 ... vocab_size - 1 and back. Its digest is of its content, the same on every machine."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def first_token(self) -> int | None:
        """The token with which it begins each text by itself, None where it begins texts with none."""

    @property
    def last_token(self) -> int | None:
        """The token that ends a text, None where it has none."""

    def encode(self, pieces: Sequence[bytes]) -> list[np.ndarray[Any, Any]]:
        """Return the ids of each piece of UTF-8 text, each on its own, without special tokens added; integer [n].

        Raises UnicodeDecodeError for a piece that is not UTF-8, where that matters.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids; invalid text becomes U+FFFD, never an error."""

    def save(self, folder: Path) -> None:
        """Write the files from which `transformers.AutoTokenizer.from_pretrained(folder)` makes the same tokenizer.

        Raises OSError.
        """


class BytesTokenizer:
    """The tokenizer whose ids are the bytes of the text, 0 ... 255; no token is added."""

    vocab_size = 256
    digest = "bytes"
    first_token: int | None = None
    last_token: int | None = None

    def encode(self, pieces: Sequence[bytes]) -> list[np.ndarray[Any, Any]]:
        return [np.frombuffer(piece, dtype=np.uint8) for piece in pieces]

    def decode(self, ids: Sequence[int]) -> str:
        # A model's vocabulary may be larger than 256: an id of no byte becomes 0xFF, which UTF-8 never has.
        return bytes(token if 0 <= token < 256 else 0xFF for token in ids).decode("utf-8", errors="replace")

    def save(self, folder: Path) -> None:
        _save(_byte_level_tokenizer(), folder)


class FileTokenizer:
    """A tokenizer of the `tokenizers` library: from a tokenizer.json, a folder or the hub."""

    def __init__(self, tokenizer: HubTokenizer, wrapped: PreTrainedTokenizerBase | None = None) -> None:
        """wrapped: the transformers tokenizer around it, if any, whose settings an export keeps."""
        # Cutting and padding belong to how a tokenizer was used once, not to a stream of tokens.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.wrapped = wrapped
        begun = tokenizer.encode("").ids
        bos, eos = (None, None) if wrapped is None else (wrapped.bos_token_id, wrapped.eos_token_id)
        self.first_token: int | None = bos if bos is not None and begun[:1] == [bos] else None
        self.last_token: int | None = eos
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.digest = blake3.blake3(tokenizer.to_str().encode()).hexdigest()

    def encode(self, pieces: Sequence[bytes]) -> list[np.ndarray[Any, Any]]:
        texts = [piece.decode("utf-8") for piece in pieces]
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # the library raises plain Exception, for instance for text without a token
            raise DataError(f"the tokenizer cannot encode the text: {one_line(error)}") from error
        return [np.asarray(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        known = [token for token in ids if 0 <= token < self.vocab_size]
        return str(self._tokenizer.decode(known, skip_special_tokens=False))

    def save(self, folder: Path) -> None:
        if self.wrapped is None:
            _save(self._tokenizer, folder)
        else:
            with _as_os_error():
                self.wrapped.save_pretrained(folder)


def open_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer of RUN.toml's data.tokenizer: "bytes", a tokenizer.json, a folder or a name on the hub.

    Raises DataError where it is missing, corrupt or out of reach.
    """
    if name == "bytes":
        return BytesTokenizer()
    path = Path(name)
    if path.is_absolute() and not path.exists():
        raise DataError(f"tokenizer {name} is not there; give a tokenizer.json, a folder with one, or a hub name")
    if path.is_file():
        return _from_file(path)
    if path.is_dir() and (path / "tokenizer.json").is_file() and not (path / "tokenizer_config.json").is_file():
        return _from_file(path / "tokenizer.json")
    return _from_transformers(name)


def _from_file(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer as HubTokenizer

    try:
        return FileTokenizer(HubTokenizer.from_str(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise DataError(f"cannot read tokenizer {path}: {error.strerror}") from error
    except Exception as error:  # the library raises plain Exception for everything in the file that it cannot use
        raise DataError(f"{path} is not a tokenizer.json: {one_line(error)}") from error


def _from_transformers(name: str) -> Tokenizer:
    from transformers import AutoTokenizer

    local_only = os.path.isdir(name) or not hub_in_reach()
    try:
        wrapped = AutoTokenizer.from_pretrained(name, trust_remote_code=False, local_files_only=local_only)
    except Exception as error:  # transformers passes on the errors of all libraries below it
        where = "" if not local_only or os.path.isdir(name) else " (the hub is out of reach and it is not in the cache)"
        raise DataError(
            f"cannot load tokenizer {name}{did_you_mean(name, ['bytes'])}{where}: {one_line(error)}"
        ) from error
    backend = getattr(wrapped, "backend_tokenizer", None)
    if backend is None:
        raise DataError(f"tokenizer {name} has no tokenizer.json form; convert it, or use another")
    return FileTokenizer(backend, wrapped)


def _byte_level_tokenizer() -> HubTokenizer:
    """A real tokenizer whose ids are the bytes: one token a byte, in byte-level BPE's alphabet, and no merges."""
    from tokenizers import Tokenizer as HubTokenizer
    from tokenizers import decoders, models, pre_tokenizers

    # That alphabet (GPT-2's) shows printable Latin-1 as itself and the other bytes, in order, as U+0100 and on.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    vocab = {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
    tokenizer = HubTokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _save(tokenizer: HubTokenizer, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    wrap: Any = PreTrainedTokenizerFast  # its __init__ has no types
    wrapped = wrap(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    with _as_os_error():
        wrapped.save_pretrained(folder)


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Raise the OSError in a bare Exception of the `tokenizers` library: `No space left (os error 28)`."""
    try:
        yield
    except Exception as error:
        number = _OS_ERROR.search(str(error))
        if isinstance(error, OSError) or number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
