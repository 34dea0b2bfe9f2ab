"""The loss and the gradients of conversations on stages, beside transformers' own loss of each record."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, PreTrainedModel

from swarmflow.compute.codec import codec_named, encode_tokens
from swarmflow.compute.device_work import AtOnce
from swarmflow.compute.families import model_config
from swarmflow.compute.grouped_stage import PackedInput
from swarmflow.compute.partition import check_packing
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import Stage
from swarmflow.errors import FrameError, ModelError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.microbatch_format import TokenFormat
from swarmflow.targets import EMPTY, IGNORED
from tests.compute.families import tiny
from tests.compute.models import config_of, stages_of, whole_model
from tests.runtime.manifests import manifest
from tests.trainers.conversations import MARKED, PLAIN, VOCAB, conversations, save_tokenizer, write_records
from tests.trainers.test_documents import B, T, opened
from trainers.data import Batch, Corpus

CUT = (1, 3)
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


def config(family: str) -> dict[str, Any]:
    longest = "n_positions" if family == "gpt2" else "max_position_embeddings"
    return {**config_of(family), "vocab_size": VOCAB, longest: T + 1}


def microbatches(corpus: Corpus) -> Iterator[Batch]:
    """Yield each row once, B at a time, then one at a time."""
    for number in range(corpus.sequences // B):
        yield corpus.microbatch(*divmod(number, 3))
    if corpus.sequences % B:
        inputs, targets = corpus.microbatch(*divmod(corpus.sequences // B, 3))
        yield inputs[:1], targets[:1]


def by_transformers(model: Any, folder: Path, records: list[dict[str, Any]]) -> float:  # noqa: ANN401
    """Return transformers' loss of all records, a batch of padded ones at a time; gradients stay in the model."""
    tokenizer: Any = AutoTokenizer.from_pretrained(save_tokenizer(folder / "marked", MARKED))
    tokenizer.pad_token = tokenizer.eos_token
    examples = []
    for record in records:
        made = tokenizer.apply_chat_template(record["messages"], return_dict=True, return_assistant_tokens_mask=True)
        masked = zip(made["input_ids"], made["assistant_masks"], strict=True)
        labels = [token if mask else IGNORED for token, mask in masked]
        examples.append({"input_ids": made["input_ids"][: T + 1], "labels": labels[: T + 1]})
    items = sum(label != IGNORED for example in examples for label in example["labels"][1:])
    collate, total = DataCollatorForSeq2Seq(tokenizer), 0.0
    for first in range(0, len(examples), 4):
        batch = collate(examples[first : first + 4])
        loss = model(**batch, num_items_in_batch=items, use_cache=False).loss
        loss.backward()
        total += float(loss.detach())
    return total


def over_the_wire(parts: list[Stage], of: Manifest, batches: Iterable[Batch]) -> tuple[float, int]:
    """Return the loss that the stages of a run give, and how many targets count; gradients stay in the stages."""
    runners = [StageRunner(part) for part in parts]
    wire, codec, work = TokenFormat(of), codec_named("none"), AtOnce(torch.device("cpu"))
    loss, count = 0.0, 0
    for number, (inputs, targets) in enumerate(batches):
        rows, with_it = len(inputs), encode_tokens(targets)
        sent: Any = encode_tokens(inputs)
        for runner in runners[:-1]:
            output = runner.forward(number, wire.input(runner.stage, sent, with_it, codec, rows))
            sent = wire.encode(runner.stage, output, codec, work).wire
        last = runners[-1]
        entered = wire.input(last.stage, sent, with_it, codec, rows)
        lost, tokens, gradient = last.loss(number, entered, wire.targets(with_it, rows))
        loss, count = loss + lost, count + tokens
        for runner in reversed(runners[:-1]):
            assert gradient is not None
            gradient = runner.backward(number, gradient)
    return loss, count


def assert_gradients(parts: list[Stage], whole: PreTrainedModel, count: int) -> None:
    """The sums of the stages by the number of targets are the gradients of the whole model."""
    own, found = dict(whole.named_parameters()), dict[str, torch.Tensor]()
    for part in parts:
        for name, _, gradient in part.named_parameters():
            assert gradient is not None
            found[name] = found.get(name, torch.zeros_like(gradient)) + gradient / count
    for name, gradient in found.items():
        wanted = own[name].grad
        assert wanted is not None
        assert torch.allclose(gradient, wanted, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize(
    ("family", "packing"), [("llama", "bfd"), ("llama", "none"), ("gpt2", "bfd"), ("mistral", "bfd")]
)
def test_the_loss_is_that_of_transformers(tmp_path: Path, family: str, packing: str) -> None:
    records = conversations(13)
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer", PLAIN))
    corpus = opened(tmp_path, write_records(tmp_path / "a.jsonl", records), packing=packing, tokenizer=tokenizer)
    parts = stages_of(config(family), CUT)
    whole = whole_model(config(family), parts)
    expected = by_transformers(whole, tmp_path, records)

    of = manifest(vocab_size=VOCAB, seq_len=T, cut=CUT, ignored_targets=True, positions=packing == "bfd", codec="none")
    loss, count = over_the_wire(parts, of, microbatches(corpus))
    assert loss / count == pytest.approx(expected, rel=1e-6)
    assert_gradients(parts, whole, count)


def padded(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs, mask and targets of the documents of a microbatch, each in a row of its own: int64 [n, T] each."""
    found: list[tuple[list[int], list[int], list[int]]] = []
    for inputs, (targets, positions) in zip(*batch, strict=True):
        starts = [*np.flatnonzero(positions == 0).tolist(), int((positions != EMPTY).sum())]
        for low, high in itertools.pairwise(starts):
            rest = T - (high - low)
            mask = [1] * (high - low) + [0] * rest
            found.append((inputs[low:high].tolist() + [0] * rest, mask, targets[low:high].tolist() + [IGNORED] * rest))
    inputs, masks, targets = (torch.tensor(rows) for rows in zip(*found, strict=True))
    return inputs, masks, targets


@pytest.mark.parametrize(("family", "packing"), [("mixtral", "bfd"), ("qwen3_moe", "none"), ("gpt_oss", "bfd")])
def test_experts_are_balanced_over_tokens_alone(tmp_path: Path, family: str, packing: str) -> None:
    """Beside transformers with a mask: what is left at the end of a row counts for no expert."""
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer", PLAIN))
    path = write_records(tmp_path / "a.jsonl", conversations(13))
    corpus = opened(tmp_path, path, packing=packing, tokenizer=tokenizer)
    mixture = {**model_config(tiny(family)), "vocab_size": VOCAB, "max_position_embeddings": T + 1}
    parts = stages_of(mixture, CUT)
    whole: Any = whole_model(mixture, parts)
    separate = packing == "bfd"
    shape = {"vocab_size": VOCAB, "seq_len": T, "cut": CUT, "codec": "none", "beside": parts[0].layout.beside}
    of = manifest(**shape, ignored_targets=True, positions=separate, empty_places=True)
    corpus.fit(of)
    batches = list(microbatches(corpus))
    assert any((targets[:, 1] == EMPTY).any() for _, targets in batches)

    expected, count = torch.zeros(()), 0
    for inputs, mask, targets in map(padded, batches):
        output = whole(input_ids=inputs, attention_mask=mask, use_cache=False, output_router_logits=True)
        losses = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), targets.flatten(), reduction="sum")
        there = int((targets != IGNORED).sum())
        expected, count = expected + losses + whole.router_aux_loss_coef * output.aux_loss * there, count + there
    (expected / count).backward()
    loss, counted = over_the_wire(parts, of, batches)
    assert counted == count
    assert loss == pytest.approx(float(expected.detach()), rel=1e-6)
    assert_gradients(parts, whole, count)


def test_families_that_cannot_keep_documents_apart_are_refused() -> None:
    check_packing(config_of("llama"), 32)
    sizes = {"hidden_size": 32, "n_head": 4, "n_layer": 2, "vocab_size": 61}
    with pytest.raises(ModelError, match=r'data.packing = "bfd": models of type bloom cannot keep'):
        check_packing({"model_type": "bloom", **sizes}, 32)


@pytest.mark.parametrize(
    ("family", "changed", "longest"),
    [
        ("phi3", {"original_max_position_embeddings": 16, "rope_parameters": LONGROPE, "sliding_window": None}, 16),
        ("llama4_text", {"floor_scale": 16, "attn_scale": 1.0, "no_rope_layers": [1, 0, 1, 0]}, 15),
    ],
)
def test_families_that_compute_long_rows_otherwise_are_refused_for_these(
    family: str, changed: dict[str, Any], longest: int
) -> None:
    config = model_config({**tiny(family), **changed})
    check_packing(config, longest)
    with pytest.raises(ModelError, match=r"depends on the others, where data\.seq_len is above 1"):
        check_packing(config, longest + 1)


def packed(targets: list[int], positions: list[int]) -> memoryview:
    return encode_tokens(np.asarray([[targets, positions]], dtype=np.int32))


@pytest.mark.parametrize(
    ("targets", "positions", "complaint"),
    [
        ([1, 2, 3, 4], [0, 1, 0, 2], "positions came that neither begin a document nor go on with one"),
        ([1, 2, 3, 4], [1, 2, 3, 4], "positions came"),
        ([1, 2, 3, 4], [0, -1, 0, 1], "positions came"),
        ([1, -1, 3, 4], [0, 1, 2, 3], "a target is neither -100 nor within"),
        ([1, VOCAB, 3, 4], [0, 1, 2, 3], "a target is neither"),
        ([IGNORED] * 4, [0, 1, 2, 3], "without a target that counts"),
        ([1, 2, 3], [0, 1, 2], "words"),
    ],
)
def test_what_is_no_row_is_refused(targets: list[int], positions: list[int], complaint: str) -> None:
    of = manifest(vocab_size=VOCAB, seq_len=4, microbatch_sequences=1, ignored_targets=True, positions=True)
    wire, stage = TokenFormat(of), stages_of(config_of("llama"), ())[0]
    tokens = encode_tokens(np.zeros((1, 4), dtype=np.int32))

    def receive() -> None:
        wire.input(stage, tokens, packed(targets, positions), codec_named("none"))
        wire.targets(packed(targets, positions))

    with pytest.raises(FrameError, match=complaint):
        receive()


@pytest.mark.parametrize(
    ("positions", "fits"),
    [
        ([0, 1, EMPTY, EMPTY], True),
        ([0, 0, 1, EMPTY], True),
        ([0, EMPTY, 0, EMPTY], False),
        ([0, EMPTY, EMPTY, 0], False),
        ([0, 1, -2, EMPTY], False),
        ([EMPTY, EMPTY, EMPTY, 1], False),
    ],
)
def test_places_are_empty_at_the_end_of_a_row_alone(positions: list[int], fits: bool) -> None:
    shape = {"vocab_size": VOCAB, "seq_len": 4, "microbatch_sequences": 1, "ignored_targets": True}
    of = manifest(**shape, empty_places=True)
    stage = stages_of(config_of("llama"), ())[0]
    tokens, sent = encode_tokens(np.zeros((1, 4), dtype=np.int32)), packed([1, 2, IGNORED, IGNORED], positions)
    if fits:
        entered = TokenFormat(of).input(stage, tokens, sent, codec_named("none"))
        assert isinstance(entered, PackedInput)
        assert entered.positions.tolist() == [positions]
        assert not entered.separate
        return
    with pytest.raises(FrameError, match="positions came"):
        TokenFormat(of).input(stage, tokens, sent, codec_named("none"))


def test_a_good_row_passes() -> None:
    of = manifest(vocab_size=VOCAB, seq_len=4, microbatch_sequences=1, ignored_targets=True, positions=True)
    sent = packed([1, IGNORED, 3, 4], [0, 1, 0, 1])
    entered = TokenFormat(of).input(
        stages_of(config_of("llama"), ())[0], encode_tokens(np.zeros((1, 4), dtype=np.int32)), sent, codec_named("none")
    )
    assert isinstance(entered, PackedInput)
    assert entered.positions.tolist() == [[0, 1, 0, 1]]
    assert TokenFormat(of).targets(sent).tolist() == [[1, IGNORED, 3, 4]]
    plain = replace(of, positions=False)
    assert TokenFormat(plain).targets(encode_tokens(np.asarray([[1, IGNORED, 3, 4]], dtype=np.int32))).tolist() == [
        [1, IGNORED, 3, 4]
    ]
