"""The sources of text: files and streamed data sets, read in a fixed order as pieces of bounded size."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from swarmflow.errors import DataError
from trainers.hub import hub_in_reach, one_line

# A tokenizer sees one piece at a time. These sizes are part of the data rule: with others, tokens differ.
PIECE_BYTES_MIN = 2**20
PIECE_BYTES_MAX = 2**22
_BLOCK_BYTES = 2**20
_LINE_BYTES_MAX = 2**28
# How a compressed file begins. Its bytes would be learnt as they are.
_PACKED = {"gzip": b"\x1f\x8b", "zip": b"PK\x03\x04", "zstd": b"(\xb5/\xfd", "xz": b"\xfd7zXZ\x00"}
_JSON_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json"})


@dataclass(frozen=True)
class Piece:
    """A piece of text."""

    where: str  # its origin, for messages
    data: bytes  # UTF-8; of a plain text file: its bytes, whatever they are


@dataclass(frozen=True)
class CorpusSource:
    """A corpus before it is tokenized."""

    name: str  # as the user wrote it
    identity: tuple[str, ...]  # lines that change when the source does (path, size and time of each file)
    pieces: Callable[[], Iterator[Piece]]  # reads it from the start; raises DataError


@dataclass(frozen=True)
class RecordSource:
    """Records before they become tokens. name, identity: as of a CorpusSource; each record comes with its place."""

    name: str
    identity: tuple[str, ...]
    records: Callable[[], Iterator[tuple[str, object]]]  # reads them from the start; raises DataError


def file_record_source(path: str) -> RecordSource:
    """Return the records of a file, a folder or a glob. Raises DataError when there is no file."""
    return RecordSource(path, tuple(map(_stamp, find_files(path))), lambda: file_records(path))


def set_record_source(name: str, config_name: str | None, split: str) -> RecordSource:
    """Return the records of a data set. Raises DataError for a local folder that is not there."""
    identity = dataset_source(name, config_name, split, "").identity
    return RecordSource(name, identity, lambda: set_records(name, config_name, split))


def file_source(path: str, text_field: str) -> CorpusSource:
    """Return the source of a file, a folder or a glob: its files in the order of their paths (compared as bytes).

    .jsonl, .ndjson and .json hold one JSON object a line, .parquet holds rows: the text is in `text_field`. All else is
    text. In a folder, names that begin with a dot are left out and links to folders are not followed.

    Raises DataError when there is no file.
    """
    files = find_files(path)
    identity = tuple(map(_stamp, files))

    def pieces() -> Iterator[Piece]:
        for file in files:
            try:
                yield from _file_pieces(file, text_field)
            except OSError as error:
                raise DataError(f"cannot read {file}: {error.strerror or error}") from error

    return CorpusSource(path, (f"field {text_field}", *identity), pieces)


def file_records(path: str) -> Iterator[tuple[str, object]]:
    """Yield the records of the files that `file_source` names, each with its place, for messages.

    Raises DataError: no file, one that is neither JSON lines nor parquet, or that cannot be read.
    """
    for file in find_files(path):
        suffix = Path(file).suffix.lower()
        if suffix not in _JSON_SUFFIXES and suffix != ".parquet":
            raise DataError(f"{file} holds no records; give .jsonl, .ndjson, .json (an object a line) or .parquet")
        try:
            for number, record in _json_records(file) if suffix in _JSON_SUFFIXES else _parquet_records(file):
                yield f"{file}, record {number}", record
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror or error}") from error


def set_records(name: str, config_name: str | None, split: str) -> Iterator[tuple[str, object]]:
    """Yield the records of a data set that `datasets` streams, each with its place. Raises DataError."""
    _check_reach(name)
    for number, record in _dataset_records(name, config_name, split):
        yield f"data set {name}, record {number}", record


def dataset_source(name: str, config_name: str | None, split: str, text_field: str) -> CorpusSource:
    """Return the source of a data set that `datasets` streams: a name on the hub, or a local folder (an absolute path).

    Raises DataError for a local folder that is not there.
    """
    local = os.path.isabs(name)
    if os.path.isfile(name):
        raise DataError(f"data.dataset {name} is a file: give it as data.path")
    files = file_source(name, text_field).identity if local else ()
    identity = (f"dataset {name} {config_name} {split}", f"field {text_field}", *files)

    def pieces() -> Iterator[Piece]:
        _check_reach(name)
        yield from _record_pieces(f"data set {name}", _dataset_records(name, config_name, split), text_field)

    return CorpusSource(name, identity, pieces)


def cut_pieces(where: str, blocks: Iterable[bytes]) -> Iterator[Piece]:
    """Cuts a stream of bytes into pieces, by its content alone and not by the blocks that it comes in.

    A piece ends after the first newline at or after its byte PIECE_BYTES_MIN (counted from 1). Where there is none
    within PIECE_BYTES_MAX bytes, the piece has that many, less what would split a UTF-8 character.
    """
    buffer = bytearray()
    for block in blocks:
        buffer += block
        while (size := _piece_size(buffer)) is not None:
            yield Piece(where, bytes(memoryview(buffer)[:size]))
            del buffer[:size]
    if buffer:
        yield Piece(where, bytes(buffer))


def _check_reach(name: str) -> None:
    if not os.path.isabs(name) and not hub_in_reach():
        raise DataError(f"data set {name}: the hub is out of reach; give data.path, or a local folder as data.dataset")


def _piece_size(buffer: bytearray) -> int | None:
    newline = buffer.find(b"\n", PIECE_BYTES_MIN - 1, PIECE_BYTES_MAX)
    if newline >= 0:
        return newline + 1
    if len(buffer) <= PIECE_BYTES_MAX:
        return None
    for size in range(PIECE_BYTES_MAX, PIECE_BYTES_MAX - 4, -1):
        if buffer[size] & 0xC0 != 0x80:
            return size
    return PIECE_BYTES_MAX


def _stamp(file: str) -> str:
    try:
        stat = os.stat(file)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from error
    return f"{file}\t{stat.st_size}\t{stat.st_mtime_ns}"


def find_files(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        found = _walk(path)
    elif os.path.exists(path):
        raise DataError(f"data path {path} is neither a file nor a folder")
    else:
        # Only the part after the longest existing folder is a pattern: a folder may be called "[old]".
        root = next(parent for parent in Path(path).parents if parent.is_dir())
        pattern = str(Path(path).relative_to(root))
        if not glob.has_magic(pattern):
            raise DataError(f"data path {path} is not there; give a file, a folder or a glob such as texts/*.txt")
        matches = {str(root / match) for match in glob.glob(pattern, root_dir=root, recursive=True)}
        found = [match for match in matches if os.path.isfile(match)]
    if not found:
        raise DataError(f"data path {path} holds no file; give a file, a folder or a glob that matches some")
    return sorted(found, key=os.fsencode)


def _walk(folder: str) -> list[str]:
    def refuse(error: OSError) -> None:
        raise DataError(f"cannot read folder {error.filename}: {error.strerror}") from error

    found: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = (os.path.join(parent, name) for name in names if not name.startswith("."))
        found.extend(file for file in files if os.path.isfile(file))
    return found


def _file_pieces(file: str, text_field: str) -> Iterator[Piece]:
    suffix = Path(file).suffix.lower()
    if suffix in _JSON_SUFFIXES:
        yield from _record_pieces(file, _json_records(file), text_field)
    elif suffix == ".parquet":
        yield from _record_pieces(file, _parquet_records(file, text_field), text_field)
    else:
        yield from cut_pieces(file, _blocks(file))


def _blocks(file: str) -> Iterator[bytes]:
    with open(file, "rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            if stream.tell() == len(block) and (kind := next((k for k in _PACKED if block.startswith(_PACKED[k])), "")):
                raise DataError(f"{file} is compressed ({kind}), and its bytes are no text: unpack it first")
            yield block


def _advice(fields: Iterable[str]) -> str:
    """Return what to do about records of these fields, none of which is the text."""
    if "messages" in (there := set(map(str, fields))):
        return 'these are conversations: set data.format = "chat"'
    if {"prompt", "completion"} <= there:
        return 'these are prompts and completions: set data.format = "prompt"'
    return "set data.text_field"


def _record_pieces(where: str, records: Iterable[tuple[int, object]], text_field: str) -> Iterator[Piece]:
    """Return the pieces of numbered records; each record begins a new piece."""
    for number, record in records:
        place = f"{where}, record {number}"
        if not isinstance(record, dict):
            raise DataError(f"{place} is not an object with a field {text_field!r}")
        if text_field not in record:
            fields = ", ".join(sorted(map(str, record))) or "none"
            raise DataError(f"{place} has no field {text_field!r} (its fields: {fields}); {_advice(record)}")
        text = record[text_field]
        if not isinstance(text, str):
            raise DataError(f"{place}: field {text_field!r} is no text but {type(text).__name__}")
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(f"{place}: field {text_field!r} holds half of a surrogate pair: no text") from error
        yield from cut_pieces(place, [data] if data else [])


def _json_records(file: str) -> Iterator[tuple[int, object]]:
    with open(file, "rb") as stream:
        number = 0
        while line := stream.readline(_LINE_BYTES_MAX):
            number += 1
            if len(line) == _LINE_BYTES_MAX:
                raise DataError(f"{file}, record {number} is longer than {_LINE_BYTES_MAX} bytes; split it")
            if line.isspace():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{file}, record {number} is not JSON ({error}); one object a line is needed"
                ) from error
            yield number, record


def _parquet_records(file: str, text_field: str | None = None) -> Iterator[tuple[int, object]]:
    """Yield rows with this column alone; None: with all."""
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            fields = table.schema_arrow.names
            if text_field is not None and text_field not in fields:
                raise DataError(f"{file} has no column {text_field!r} (it has {', '.join(fields)}); {_advice(fields)}")
            columns = None if text_field is None else [text_field]
            for batch in table.iter_batches(batch_size=1024, columns=columns):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:  # of text, and of dates that Python has not
        where = f", after record {number}," if number else ""
        raise DataError(f"{file}{where} is not a readable parquet file: {one_line(error)}") from error


def _dataset_records(name: str, config_name: str | None, split: str) -> Iterator[tuple[int, object]]:
    import datasets

    try:
        stream = datasets.load_dataset(name, config_name, split=split, streaming=True)
        yield from enumerate(stream, start=1)
    except Exception as error:  # datasets passes on the errors of all libraries below it
        raise DataError(f"cannot stream data set {name}, split {split}: {one_line(error)}") from error
