"""Records of conversations, prompts and texts: which tokens count in the loss, how rows are packed, what is refused."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from swarmflow.config import DataSection, ModelSection, OptimizerSection, RunConfig, RunSection, TrainSection, load
from swarmflow.errors import ConfigError, DataError
from swarmflow.targets import IGNORED
from tests.trainers.conversations import (
    END,
    FORGETFUL,
    MARKED,
    PLAIN,
    VOCAB,
    conversations,
    save_tokenizer,
    write_records,
)
from trainers.data import Batch, Corpus, open_corpus

T, B, N = 64, 2, 3


def opened(folder: Path, path: str, form: str = "chat", packing: str = "bfd", seq_len: int = T, **more: Any) -> Corpus:  # noqa: ANN401
    data = DataSection(path=path, format=form, packing=packing, seq_len=seq_len, **more)
    train = TrainSection(microbatches=N, microbatch_sequences=B)
    config = RunConfig(run=RunSection(), model=ModelSection(), data=data, optimizer=OptimizerSection(), train=train)
    return open_corpus(config, VOCAB, folder / "cache")


def rows_of(corpus: Corpus) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Return inputs and what travels with them, row by row."""
    found = []
    for place in range(corpus.sequences):
        inputs, targets = corpus.microbatch(*divmod(place // B, N))
        found.append((inputs[place % B], targets[place % B]))
    return found


def fragments(corpus: Corpus) -> list[tuple[list[int], list[int]]]:
    """Return inputs and targets of all fragments of packed rows, by the positions; without those of the rests."""
    found = []
    for inputs, (targets, positions) in rows_of(corpus):
        starts = [*np.flatnonzero(positions == 0).tolist(), T]
        for low, high in itertools.pairwise(starts):
            assert positions[low:high].tolist() == list(range(high - low))
            if (targets[low:high] != IGNORED).any():
                found.append((inputs[low:high].tolist(), targets[low:high].tolist()))
    return found


def expected(folder: Path, records: list[dict[str, Any]]) -> list[tuple[list[int], list[int]]]:
    """Return the same by transformers alone, from the template with marks."""
    tokenizer: Any = AutoTokenizer.from_pretrained(save_tokenizer(folder / "marked", MARKED))
    found = []
    for record in records:
        made = tokenizer.apply_chat_template(record["messages"], return_dict=True, return_assistant_tokens_mask=True)
        pairs = zip(made["input_ids"], made["assistant_masks"], strict=True)
        labels = [token if mask else IGNORED for token, mask in pairs]
        found.append((made["input_ids"][:-1][:T], labels[1:][:T]))
    return [(inputs, targets) for inputs, targets in found if any(target != IGNORED for target in targets)]


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["prefixes", "marks"])
def test_what_the_assistant_says_counts(tmp_path: Path, template: str) -> None:
    records = conversations(20)
    path = write_records(tmp_path / "chat.jsonl", records)
    corpus = opened(tmp_path, path, tokenizer=str(save_tokenizer(tmp_path / "tokenizer", template)))
    assert sorted(fragments(corpus)) == sorted(expected(tmp_path, records))
    assert "records" in corpus.summary
    assert "cut short" in corpus.summary
    again = opened(tmp_path, path, tokenizer=str(tmp_path / "tokenizer"))
    assert (
        again.digest
        == corpus.digest
        != opened(tmp_path, path, tokenizer=str(tmp_path / "tokenizer"), packing="none").digest
    )


def test_rows_are_filled_best_fit_decreasing(tmp_path: Path) -> None:
    sizes = [40, 30, 30, 24, 20, 3, 64, 63]
    records = [{"prompt": "p" * 2, "completion": "c" * (size - 1)} for size in sizes]  # size inputs, size + 1 tokens
    corpus = opened(tmp_path, write_records(tmp_path / "a.jsonl", records), "prompt")
    filled = []
    for _, (targets, positions) in rows_of(corpus):
        starts = [*np.flatnonzero(positions == 0).tolist(), T]
        parts = itertools.pairwise(starts)
        filled.append([high - low for low, high in parts if (targets[low:high] != IGNORED).any()])
    assert filled == [[40, 24], [30, 30, 3], [20], [64], [63]]


def test_a_prompt_is_read_and_its_completion_counts(tmp_path: Path) -> None:
    records = [{"prompt": "2+2=", "completion": "4"}, {"prompt": "", "completion": "yes"}]
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer", None))
    corpus = opened(tmp_path, write_records(tmp_path / "a.jsonl", records), "prompt", "none", 8, tokenizer=tokenizer)
    (first, one), (second, two) = rows_of(corpus)
    end = 256
    assert bytes(first[:5].tolist()) == b"2+2=4"
    assert one.tolist() == [IGNORED] * 3 + [ord("4"), end] + [IGNORED] * 3
    assert bytes(second[:3].tolist()) == b"yes"
    assert two.tolist() == [ord("e"), ord("s"), end] + [IGNORED] * 5
    assert corpus.decode([end]) == END


def test_wrapped_rows_go_on_from_record_to_record(tmp_path: Path) -> None:
    records = [{"prompt": "ab", "completion": "cde"}] * 4 + [{"prompt": "x" * 40, "completion": "y"}]
    corpus = opened(tmp_path, write_records(tmp_path / "a.jsonl", records), "prompt", "wrapped", 8)
    found = rows_of(corpus)
    text = b"abcde" * 4 + b"x" * 40 + b"y"
    assert [bytes(inputs.tolist()) for inputs, _ in found[:2]] == [text[:8], text[8:16]]
    assert found[0][1].tolist() == [IGNORED, *b"cde", IGNORED, IGNORED, *b"cd"]
    assert len(found) == 4, "rows in the middle of the long prompt have nothing to learn"
    assert found[-1][1].tolist() == [IGNORED] * 3 + [ord("y")] + [IGNORED] * 4


def test_long_texts_are_split_and_every_token_counts_once(tmp_path: Path) -> None:
    texts = ["".join(chr(97 + (n * 7 + k) % 26) for k in range(n)) for n in (1, 2, 65, 66, 200)]
    path = write_records(tmp_path / "a.jsonl", [{"body": text} for text in texts])
    corpus = opened(tmp_path, path, "text", "bfd", text_field="body")
    counted = Counter(chr(target) for _, targets in fragments(corpus) for target in targets if target != IGNORED)
    assert counted == Counter("".join(text[1:] for text in texts))


def test_validation_is_packed_alike(tmp_path: Path) -> None:
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer", PLAIN))
    path = write_records(tmp_path / "a.jsonl", conversations(9))
    held = write_records(tmp_path / "b.jsonl", conversations(7, seed=1))
    corpus = opened(tmp_path, path, tokenizer=tokenizer, validation_path=held)
    batches: list[Batch] = list(corpus.validation())
    assert all(targets.shape == (len(inputs), 2, T) for inputs, targets in batches)
    counted = sum(int((targets[:, 0] != IGNORED).sum()) for _, targets in batches)
    assert counted == sum(
        target != IGNORED for _, targets in expected(tmp_path, conversations(7, seed=1)) for target in targets
    )


USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("form", "template", "record", "complaint"),
    [
        ("chat", PLAIN, {"text": "a"}, "record 2 has no field 'messages' (its fields: text)"),
        ("chat", PLAIN, {"messages": "hello"}, "record 2: its field 'messages' is no list: it must be a list of mess"),
        ("chat", PLAIN, {"messages": [USER, "b"]}, "record 2: message 2 is no object with a role"),
        ("chat", PLAIN, {"messages": [USER, {"role": "assistant", "content": 3}]}, "content of message 2 is no text"),
        ("chat", PLAIN, {"messages": [USER]}, 'record 2: no message has the role "assistant"'),
        ("chat", FORGETFUL, {"messages": [USER, ANSWER, USER, ANSWER]}, "chat template renders message 2"),
        ("chat", "{{ raise_exception('no!') }}", {"messages": [USER, ANSWER]}, "the chat template refuses it"),
        ("chat", None, {"messages": [USER, ANSWER]}, 'has no chat template, which data.format = "chat" needs'),
        ("prompt", None, {"prompt": "a"}, "record 2 has no field 'completion' (its fields: prompt)"),
        ("prompt", None, {"prompt": "a", "completion": 1}, "record 2: field 'completion' is no text but int"),
        ("prompt", None, [1], "record 2 is not an object"),
        ("text", None, {"prompt": "a"}, "record 2 has no field 'text'"),
    ],
)  # fmt: skip
def test_a_bad_record_is_named(tmp_path: Path, form: str, template: str | None, record: object, complaint: str) -> None:
    good = {"messages": [USER, ANSWER], "prompt": "a", "completion": "b", "text": "ab"}
    path = write_records(tmp_path / "a.jsonl", [good, record])
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer", template))
    with pytest.raises(DataError) as caught:
        opened(tmp_path, path, form, tokenizer=tokenizer)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_assistant_says_first_counts_without_what_the_template_adds(tmp_path: Path) -> None:
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer", "be kind\n" + PLAIN))
    path = write_records(tmp_path / "a.jsonl", [{"messages": [ANSWER, USER]}])
    [(inputs, targets)] = rows_of(opened(tmp_path, path, packing="none", tokenizer=tokenizer))
    assert bytes(inputs[:7].tolist()) == b"be kind"
    assert targets[targets != IGNORED].tolist() == [ord("b"), 256, ord("\n")]


def test_a_template_has_no_clock(tmp_path: Path) -> None:
    dated = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y, %Y-%m-%d') }}{% endif %}"
    path = write_records(tmp_path / "a.jsonl", [{"messages": [USER, ANSWER]}])
    for name, template in (("plain", PLAIN), ("marked", MARKED)):
        tokenizer = str(save_tokenizer(tmp_path / name, dated + template))
        corpus = opened(tmp_path, path, packing="none", tokenizer=tokenizer)
        [(inputs, _)] = rows_of(corpus)
        assert corpus.decode(inputs.tolist()).startswith("26 Jul 2024, 2024-07-26<|im_start|>user"), name


def test_conversations_with_tools_have_a_template_of_their_own_where_there_is_one(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {}}}]
    records: list[dict[str, Any]] = [{"messages": [USER, ANSWER]}, {"messages": [USER, ANSWER], "tools": tools}]
    path = write_records(tmp_path / "a.jsonl", records)
    for name, template in (("plain", PLAIN), ("marked", MARKED)):
        own = {"default": template, "tool_use": "tools {{ tools | length }} " + template}
        folder = save_tokenizer(tmp_path / name, own)
        corpus = opened(tmp_path, path, packing="none", tokenizer=str(folder))
        oracle: Any = AutoTokenizer.from_pretrained(folder)
        wanted = [oracle.apply_chat_template(r["messages"], tools=r.get("tools"), tokenize=False) for r in records]
        texts = [corpus.decode(inputs[inputs >= 0].tolist()) for inputs, _ in rows_of(corpus)]
        assert wanted[1].startswith("tools 1 <|im_start|>user"), name
        assert all(any(text.startswith(some[:-1]) for text in texts) for some in wanted), name


def test_a_text_named_as_a_format_is_no_record_of_it(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.jsonl", [{"prompt": "abc", "completion": "de"}])
    text = opened(tmp_path, path, "text", "none", text_field="prompt")
    prompt = opened(tmp_path, path, "prompt", "none")
    assert (text.tokens, prompt.tokens) == (3, 5), "the cache of one is not the other's"


def test_plain_text_holds_no_records(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    with pytest.raises(DataError, match=r"a\.txt holds no records"):
        opened(tmp_path, str(tmp_path / "a.txt"), "text", "none")


def test_the_default_of_packing_follows_the_format(tmp_path: Path) -> None:
    def section(text: str) -> DataSection:
        (tmp_path / "RUN.toml").write_text(f'[model]\npath = "m"\nstages = 1\n[data]\npath = "a"\n{text}')
        return load(tmp_path / "RUN.toml").data

    assert section("").packing == "wrapped"
    assert section('format = "chat"').packing == section('format = "prompt"').packing == "bfd"
    assert section('format = "chat"\npacking = "none"').packing == "none"
    with pytest.raises(ConfigError, match=r'data.text_field = "a": goes only with data.format = "text"'):
        section('format = "chat"\ntext_field = "a"')


def test_what_killed_processes_left_in_the_cache_is_removed(tmp_path: Path) -> None:
    draft = tmp_path / "cache" / f"{'0' * 32}.bin.{'1' * 8}.tmp"
    draft.parent.mkdir()
    draft.touch()
    os.utime(draft, (2, 2))
    records = [{"prompt": "ask", "completion": "answer"}] * 20
    opened(tmp_path, write_records(tmp_path / "a.jsonl", records), "prompt")
    assert not draft.exists()


def test_records_are_kept_as_they_were_tokenized_first(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.jsonl", [{"prompt": "ab", "completion": "cd"}])
    digest = opened(tmp_path, path, "prompt").digest
    cached = sorted((tmp_path / "cache").iterdir())
    assert len(cached) == 3
    facts = json.loads(next(file for file in cached if file.suffix == ".json").read_bytes())
    assert (facts["documents"], facts["tokens"]) == (1, 4)
    assert opened(tmp_path, path, "prompt").digest == digest
    assert sorted((tmp_path / "cache").iterdir()) == cached
