"""The corpus: the data rule on real files, every kind of source, the token cache, and what is refused."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer as HubTokenizer
from tokenizers import models, pre_tokenizers

from swarmflow.config import DataSection, ModelSection, OptimizerSection, RunConfig, RunSection, TrainSection
from swarmflow.errors import DataError
from trainers.data import Corpus, open_corpus

T, B, N = 8, 2, 3
TEXT = bytes(np.random.default_rng(1).integers(0, 256, 8 * 11 + 1, dtype=np.uint8))


class Keys(TypedDict, total=False):
    """The keys of [data] that a test sets."""

    path: str
    dataset: str
    split: str
    text_field: str
    tokenizer: str
    seq_len: int
    order: str
    validation_path: str


def configured(seed: int = 0, **data: Unpack[Keys]) -> RunConfig:
    data.setdefault("seq_len", T)
    return RunConfig(
        run=RunSection(),
        model=ModelSection(),
        data=DataSection(**data),
        optimizer=OptimizerSection(),
        train=TrainSection(microbatches=N, microbatch_sequences=B, seed=seed),
    )


def opened(tmp_path: Path, vocab_size: int | None = 256, seed: int = 0, **data: Unpack[Keys]) -> Corpus:
    return open_corpus(configured(seed, **data), vocab_size, tmp_path / "cache")


def text_of(corpus: Corpus) -> bytes:
    """All tokens that sequences cover, as bytes, read back through microbatches."""
    rows = {}
    for place in range(corpus.sequences):
        inputs, targets = corpus.microbatch(*divmod(place // B, N))
        rows[place] = bytes([*inputs[place % B], targets[place % B][-1]])
    return b"".join(row[:-1] for row in rows.values()) + rows[corpus.sequences - 1][-1:]


def refusal(tmp_path: Path, vocab_size: int | None = 256, **data: Unpack[Keys]) -> str:
    with pytest.raises(DataError) as caught:
        opened(tmp_path, vocab_size, **data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def text_file(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_bytes(TEXT)
    return str(tmp_path / "text.txt")


def test_microbatches_follow_the_rule(tmp_path: Path, text_file: str) -> None:
    corpus = opened(tmp_path, path=text_file)
    assert (corpus.tokens, corpus.sequences, corpus.vocab_size) == (89, 11, 256)
    for step in range(6):
        for index in range(N):
            inputs, targets = corpus.microbatch(step, index)
            assert inputs.dtype == targets.dtype == np.int32
            assert inputs.shape == targets.shape == (B, T)
            for b in range(B):
                k = ((step * N + index) * B + b) % 11
                assert bytes(inputs[b].tolist()) == TEXT[k * T : (k + 1) * T]
                assert bytes(targets[b].tolist()) == TEXT[k * T + 1 : (k + 1) * T + 1]


@pytest.mark.parametrize(("tokens", "sequences"), [(9, 1), (16, 1), (17, 2), (24, 2), (25, 3)])
def test_each_sequence_needs_one_token_more(tmp_path: Path, tokens: int, sequences: int) -> None:
    (tmp_path / "a").write_bytes(TEXT[:tokens])
    assert opened(tmp_path, path=str(tmp_path / "a")).sequences == sequences


def test_shuffled_is_a_permutation_of_the_seed(tmp_path: Path, text_file: str) -> None:
    def epoch(seed: int) -> list[bytes]:
        corpus = opened(tmp_path, path=text_file, order="shuffled", seed=seed)
        return [bytes(corpus.microbatch(*divmod(p // B, N))[0][p % B].tolist()) for p in range(11)]

    sequential = [TEXT[k * T : (k + 1) * T] for k in range(11)]
    assert sorted(epoch(0)) == sorted(epoch(1)) == sorted(sequential)
    assert len({tuple(epoch(0)), tuple(epoch(1)), tuple(sequential)}) == 3
    assert epoch(0) == epoch(0)


def test_validation_comes_in_order_with_a_shorter_end(tmp_path: Path, text_file: str) -> None:
    (tmp_path / "held").write_bytes(TEXT[: T * 5 + 1])
    corpus = opened(tmp_path, path=text_file, validation_path=str(tmp_path / "held"))
    batches = list(corpus.validation())
    assert [inputs.shape for inputs, _ in batches] == [(2, T), (2, T), (1, T)]
    assert np.concatenate([inputs.ravel() for inputs, _ in batches]).tolist() == list(TEXT[: T * 5])
    assert np.concatenate([targets.ravel() for _, targets in batches]).tolist() == list(TEXT[1 : T * 5 + 1])
    plain = opened(tmp_path, path=text_file)
    assert list(plain.validation()) == []
    assert plain.validation_digest is None
    assert plain.digest == corpus.digest != corpus.validation_digest


def test_files_are_read_in_the_order_of_their_paths(tmp_path: Path) -> None:
    folder = tmp_path / "[texts]"
    for name, content in [
        ("b.txt", b"2"),
        ("a/z.md", b"1"),
        ("a-b", b"0"),
        ("c/d/e", b"3"),
        (".hid", b"x"),
        (".h/f", b"y"),
    ]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content * 11)
    assert text_of(opened(tmp_path, path=str(folder), seq_len=T)) == b"0" * 11 + b"1" * 11 + b"2" * 11 + b"3" * 8
    matched = opened(tmp_path, path=str(folder / "**" / "[az]*"))
    assert matched.tokens == 22
    assert text_of(matched) == b"0" * 11 + b"1" * 6


def records(kind: str, folder: Path, texts: list[str]) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / f"records.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"n": list(range(len(texts))), "body": texts}), path)
    else:
        path.write_text("\n".join(json.dumps({"n": 1, "body": text}) for text in texts) + "\n\n")
    return str(path)


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_records_are_read_one_after_another(tmp_path: Path, kind: str) -> None:
    texts = [f"récord {number}\n" * (number % 3) for number in range(3000)]
    corpus = opened(tmp_path, path=records(kind, tmp_path / "in", texts), text_field="body", seq_len=1)
    expected = "".join(texts).encode()
    assert corpus.tokens == len(expected)
    assert text_of(corpus) == expected


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_data_set_is_streamed_from_a_local_folder(tmp_path: Path, kind: str) -> None:
    texts = [f"record {number}\n" for number in range(50)]
    path = records(kind, tmp_path / "set", texts)
    corpus = opened(tmp_path, dataset=str(Path(path).parent), text_field="body", seq_len=1)
    assert text_of(corpus) == "".join(texts).encode()
    assert corpus.digest == opened(tmp_path, path=path, text_field="body", seq_len=1).digest


def test_digest_depends_on_content_not_on_place(tmp_path: Path, text_file: str) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "1").write_bytes(TEXT[:30])
    (tmp_path / "x" / "2").write_bytes(TEXT[30:])
    corpus = opened(tmp_path, path=text_file)
    assert opened(tmp_path, path=str(tmp_path / "x")).digest == corpus.digest
    assert opened(tmp_path, path=text_file, seq_len=4).digest != corpus.digest
    (tmp_path / "x" / "2").write_bytes(TEXT[30:-1])
    assert opened(tmp_path, path=str(tmp_path / "x")).digest != corpus.digest


def test_the_cache_is_used_and_made_again_when_a_file_changes(tmp_path: Path, text_file: str) -> None:
    first = opened(tmp_path, path=text_file)
    made = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    assert opened(tmp_path, path=text_file).digest == first.digest
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == made
    Path(text_file).write_bytes(bytes(reversed(TEXT)))
    os.utime(text_file, ns=(1, 1))
    assert text_of(opened(tmp_path, path=text_file)) == bytes(reversed(TEXT))
    assert text_of(first) == TEXT


@pytest.mark.parametrize("damage", ["truncate", "no facts", "torn facts"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, text_file: str, damage: str) -> None:
    opened(tmp_path, path=text_file)
    (tokens,) = (tmp_path / "cache").glob("*.bin")
    (facts,) = (tmp_path / "cache").glob("*.json")
    if damage == "truncate":
        os.truncate(tokens, 5)
    elif damage == "no facts":
        facts.unlink()
    else:
        facts.write_text('{"tokens": 8')
    assert text_of(opened(tmp_path, path=text_file)) == TEXT


def test_several_may_build_at_once(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(TEXT * 40_000)
    with ThreadPoolExecutor(4) as pool:
        corpora = list(pool.map(lambda _: opened(tmp_path, path=str(tmp_path / "large")), range(4)))
    assert len({corpus.digest for corpus in corpora}) == 1
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".bin", ".json"]


def test_what_killed_builders_left_is_removed(tmp_path: Path, text_file: str) -> None:
    (tmp_path / "cache").mkdir()
    old, new = (f"{digit * 32}.bin.{digit * 8}.tmp" for digit in "01")
    for name, age_s in [(old, 2), (new, None), ("notes.tmp", 2)]:
        (tmp_path / "cache" / name).write_bytes(b"x")
        if age_s is not None:
            os.utime(tmp_path / "cache" / name, (age_s, age_s))
    opened(tmp_path, path=text_file)
    assert sorted(path.name for path in (tmp_path / "cache").glob("*.tmp")) == [new, "notes.tmp"]


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> str:
    """A tokenizer of words, with more of them than a byte can count."""
    tokenizer = HubTokenizer(models.WordLevel({f"w{n}": n for n in range(700)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "words.json"))
    return str(tmp_path / "words.json")


def test_a_tokenizer_from_a_file(tmp_path: Path, tokenizer_file: str) -> None:
    numbers = [n * 37 % 700 for n in range(200_000)]
    (tmp_path / "a").write_text("".join(f"w{n}\n" for n in numbers))
    corpus = opened(tmp_path, vocab_size=700, path=str(tmp_path / "a"), tokenizer=tokenizer_file)
    assert corpus.tokens == len(numbers)
    inputs, targets = corpus.microbatch(100, 2)
    first = (100 * N + 2) * B * T
    assert inputs.ravel().tolist() == numbers[first : first + B * T]
    assert targets.ravel().tolist() == numbers[first + 1 : first + B * T + 1]
    assert corpus.encode("w5 w699") == [5, 699]


def test_what_cannot_be_used_is_named(tmp_path: Path, text_file: str, tokenizer_file: str) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for path, expected in [
        (tmp_path / "missing", "missing is not there"),
        (tmp_path / "*.nope", "*.nope holds no file"),
        (tmp_path / "folder", "folder holds no file"),
        (tmp_path / "empty", "empty holds no text"),
        (Path("/dev/null"), "/dev/null is neither a file nor a folder"),
    ]:
        assert expected in refusal(tmp_path, path=str(path))
    assert "text.txt holds 89 tokens: one sequence needs data.seq_len + 1 = 90" in refusal(
        tmp_path, path=text_file, seq_len=89
    )
    assert "has 256 tokens, more than the model's vocab_size = 255" in refusal(tmp_path, path=text_file, vocab_size=255)
    assert "text.txt is not UTF-8 text; convert it" in refusal(
        tmp_path, path=text_file, tokenizer=tokenizer_file, vocab_size=None
    )
    assert list((tmp_path / "cache").glob("*.tmp")) == []


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "a.jsonl",
            b'{"text": "x"}\n{"txt": 1}\n',
            "record 2 has no field 'text' (its fields: txt); set data.text_field",
        ),
        ("a.jsonl", b'{"messages": []}\n', 'these are conversations: set data.format = "chat"'),
        ("a.jsonl", b'{"prompt": "a", "completion": "b"}\n', 'set data.format = "prompt"'),
        ("a.txt", b"\x1f\x8b\x08", "a.txt is compressed (gzip), and its bytes are no text: unpack it first"),
        ("a.jsonl", b'{"text": null}\n', "record 1: field 'text' is no text but NoneType"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "record 1: field 'text' holds half of a surrogate pair"),
        ("a.jsonl", b'["text"]\n', "record 1 is not an object"),
        ("a.jsonl", b"text\n", "record 1 is not JSON"),
        ("a.jsonl", b"\xff\n", "record 1 is not JSON"),
        ("a.jsonl", b"[" * 100_000, "record 1 is not JSON"),
        ("a.parquet", b"PAR1", "a.parquet is not a readable parquet file"),
    ],
)
@pytest.mark.usefixtures("without_collection")
def test_a_bad_record_is_named(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert f"{tmp_path / name}" in refusal(tmp_path, path=str(tmp_path / name))
    assert expected in refusal(tmp_path, path=str(tmp_path / name))


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.StringArray.from_buffers(
            2, pyarrow.py_buffer(np.array([0, 1, 2], "<i4").tobytes()), pyarrow.py_buffer(b"a\xff")
        ),
        pyarrow.array([0, 10**15], pyarrow.timestamp("ms")),
    ],
    ids=["text", "date"],
)
def test_a_parquet_file_whose_values_python_has_not(column: pyarrow.Array, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), path)
    assert f"{path} is not a readable parquet file" in refusal(tmp_path, path=str(path))


def test_a_parquet_file_without_the_column(tmp_path: Path) -> None:
    assert "has no column 'text' (it has n, body)" in refusal(tmp_path, path=records("parquet", tmp_path, ["a"]))


def test_a_data_set_out_of_reach_or_of_another_form_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "data set nobody/none: the hub is out of reach" in refusal(tmp_path, dataset="nobody/none")
    (tmp_path / "odd").mkdir()
    assert "odd holds no file" in refusal(tmp_path, dataset=str(tmp_path / "odd"))
    (tmp_path / "odd" / "a.jsonl").write_text('{"text": "x"}\n')
    assert "cannot stream data set" in refusal(tmp_path, dataset=str(tmp_path / "odd"), split="absent")
    assert "a.jsonl is a file: give it as data.path" in refusal(tmp_path, dataset=str(tmp_path / "odd" / "a.jsonl"))


@contextmanager
def small_files_only() -> Iterator[None]:
    """No file may grow beyond 64 KiB: a write then fails as it does on a full disk, with another errno."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_for_the_cache(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(TEXT * 4000)
    with small_files_only():
        message = refusal(tmp_path, path=str(tmp_path / "large"))
    assert "cannot write the token cache in" in message
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_folder_that_cannot_be(tmp_path: Path, text_file: str) -> None:
    (tmp_path / "cache").write_bytes(b"a file")
    assert "cannot write the token cache in" in refusal(tmp_path, path=text_file)


def test_steps_and_trainers_do_not_change_a_batch(tmp_path: Path, text_file: str) -> None:
    config = configured(path=text_file)
    longer = replace(config, train=replace(config.train, steps=7))
    first = open_corpus(config, None, tmp_path / "one").microbatch(5, 1)
    other = open_corpus(longer, None, tmp_path / "two").microbatch(5, 1)
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(first, other, strict=True))
