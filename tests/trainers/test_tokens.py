"""Tokenizers: ids and text there and back, and what plain transformers makes of the saved files."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HubTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from swarmflow.errors import DataError
from tests.disks import small_disk
from trainers.tokens import BytesTokenizer, open_tokenizer

TRICKY = "héllo  wörld .  a\n\n\t'll do n't \x00\x7f 日本 \U0001f600 <|endoftext|>"


def byte_pairs(vocab_size: int = 300) -> HubTokenizer:
    """A small byte-level BPE tokenizer with truncation left on, as a saved one may have it."""
    tokenizer = HubTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the cat sat on the mat and the rat ran to the hat " * 50], trainer)
    tokenizer.enable_truncation(max_length=4)
    return tokenizer


@pytest.mark.parametrize("model_type", [None, "gpt2", "llama", "qwen2", "qwen3", "mistral", "gpt_neox"])
def test_saved_bytes_tokenizer_loads_in_plain_transformers(tmp_path: Path, model_type: str | None) -> None:
    BytesTokenizer().save(tmp_path)
    if model_type is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": 256}))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.encode("héllo") == list("héllo".encode())
    # Qwen2's class has a token <|endoftext|> of its own, whatever tokenizer.json says.
    text = TRICKY.replace("<|endoftext|>", "") if model_type == "qwen2" else TRICKY
    assert loaded.encode(text) == list(text.encode())
    assert loaded.decode(list(text.encode())) == text


@pytest.fixture(scope="module")
def saved_bytes(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = tmp_path_factory.mktemp("bytes")
    BytesTokenizer().save(folder)
    return AutoTokenizer.from_pretrained(folder)


@settings(max_examples=50)
@given(text=st.text())
def test_bytes_round_trip_any_text(saved_bytes: PreTrainedTokenizerBase, text: str) -> None:
    ids = list(text.encode())
    assert saved_bytes.encode(text) == ids
    assert saved_bytes.decode(ids) == text
    assert BytesTokenizer().encode([text.encode()])[0].tolist() == ids
    assert BytesTokenizer().decode(ids) == text


def test_what_is_no_byte_decodes_to_a_replacement() -> None:
    assert BytesTokenizer().decode([72, 256, 105, 0xC3]) == "H\ufffdi\ufffd"


@pytest.mark.parametrize("form", ["file", "folder with the file", "folder of transformers"])
def test_a_tokenizer_from_disk(tmp_path: Path, form: str) -> None:
    original = byte_pairs()
    if form == "folder of transformers":
        wrap: Any = PreTrainedTokenizerFast
        wrap(tokenizer_object=original).save_pretrained(tmp_path)
    else:
        original.enable_padding(length=8)
        original.save(str(tmp_path / "tokenizer.json"))
    tokenizer = open_tokenizer(str(tmp_path / "tokenizer.json" if form == "file" else tmp_path))
    original.no_truncation()
    original.no_padding()
    text = "the cat sat on the mat, and the rat ran"
    ids = tokenizer.encode([text.encode(), b"", b"hat"])
    assert [part.tolist() for part in ids] == [original.encode(part).ids for part in (text, "", "hat")]
    assert len(ids[0]) > 4
    assert tokenizer.decode(ids[0].tolist()) == text
    assert tokenizer.vocab_size == original.get_vocab_size()
    assert tokenizer.digest == open_tokenizer(str(tmp_path)).digest
    tokenizer.save(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").encode(text) == ids[0].tolist()


def test_digests_tell_tokenizers_apart(tmp_path: Path) -> None:
    digests = set()
    for size in (260, 270):
        byte_pairs(size).save(str(tmp_path / f"{size}.json"))
        digests.add(open_tokenizer(str(tmp_path / f"{size}.json")).digest)
    assert len(digests) == 2


def test_ids_beyond_the_number_of_tokens_count(tmp_path: Path) -> None:
    HubTokenizer(models.WordLevel({"a": 0, "b": 700}, unk_token="a")).save(str(tmp_path / "t.json"))
    assert open_tokenizer(str(tmp_path / "t.json")).vocab_size == 701


def test_text_without_a_token_is_one_clear_error(tmp_path: Path) -> None:
    HubTokenizer(models.WordLevel({"a": 0}, unk_token="<unk>")).save(str(tmp_path / "t.json"))
    with pytest.raises(DataError, match="cannot encode the text: "):
        open_tokenizer(str(tmp_path / "t.json")).encode([b"zebra"])


def test_what_is_no_tokenizer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.json").write_text('{"version": "1.0"}')
    (tmp_path / "raw.json").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").mkdir()
    for name, message in [
        ("missing.json", r"tokenizer .*missing\.json is not there"),
        ("t.json", r"t\.json is not a tokenizer\.json"),
        ("raw.json", r"raw\.json is not a tokenizer\.json"),
        ("empty", "cannot load tokenizer .*empty"),
    ]:
        with pytest.raises(DataError, match=message) as caught:
            open_tokenizer(str(tmp_path / name))
        assert "\n" not in str(caught.value)
    # A hub that is not there: nothing listens on port 9 of this machine.
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match="the hub is out of reach and it is not in the cache"):
        open_tokenizer("nobody/of-that-name")


@pytest.mark.parametrize("of", ["bytes", "file", "folder"])
def test_a_full_disk_is_said_as_the_system_says_it(of: str, tmp_path: Path) -> None:
    byte_pairs().save(str(tmp_path / "tokenizer.json"))
    if of == "folder":
        PreTrainedTokenizerFast(tokenizer_object=byte_pairs()).save_pretrained(tmp_path / "folder")
    name = {"bytes": "bytes", "file": str(tmp_path / "tokenizer.json"), "folder": str(tmp_path / "folder")}[of]
    tokenizer = open_tokenizer(name)
    with small_disk(tmp_path / "disk", 1 << 16) as disk:
        (disk.path / "tokenizer").mkdir()
        disk.fill()
        with pytest.raises(OSError, match="No space left on device") as refused:
            tokenizer.save(disk.path / "tokenizer")
        assert refused.value.errno == errno.ENOSPC
