"""RUN.toml as `swarmflow init` writes it: the chosen keys, the other ones with their defaults, and comments."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from swarmflow.config import DataSection, ModelSection, OptimizerSection, RunSection, TrainSection
from swarmflow.files import readable_size
from trainers.init.plan import NewRun

_COMMENT_COLUMN = 36
_HEAD = """\
# A run of swarmflow: what it trains, on what, and how. Written by `swarmflow init`, to be changed as you like.
# A line that begins with "# " and a key shows a default, or an example: remove the "# " to set it.
# Every key is explained in docs/run-toml.md. After a change: swarmflow check {file}
# Once the first step is committed, these may still change: steps, checkpoint_every, validate_every,
# validation_path, output, peers, export_every, keep_exports, placement, stages, cut. Paths are relative to this file.
"""


@dataclass(frozen=True)
class KeyLine:
    """A line of RUN.toml: a key with its value and a comment. active: the key is set; else the line is a comment."""

    key: str
    value: Any
    comment: str
    active: bool = True

    def __str__(self) -> str:
        text = f"{'' if self.active else '# '}{self.key} = {toml_value(self.value)}"
        return f"{text:<{_COMMENT_COLUMN - 1}} # {self.comment}" if self.comment else text


def render(run: NewRun, file: str) -> str:
    """Return the content of RUN.toml. file: its name."""
    sections: list[tuple[str, str, Iterable[KeyLine]]] = [
        ("run", "", _run_lines(run)),
        ("model", _model_note(run), _model_lines(run)),
        ("data", "", _data_lines(run)),
        ("optimizer", "", _optimizer_lines(run)),
        ("train", _train_note(run), _train_lines(run)),
    ]
    if run.model.config is not None:
        sections.insert(2, ("model.config", "As in a Hugging Face config.json.", _config_lines(run)))
    parts = [_HEAD.format(file=file)]
    for name, note, lines in sections:
        head = f"[{name}]" + (f"\n# {note}" if note else "")
        parts.append("\n".join((head, *map(str, lines))) + "\n")
    return "\n".join(parts)


def toml_value(value: object) -> str:
    """Return a string, boolean, number, or list of these as TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    # JSON writes them as TOML does, but for a DEL in a string, and surrogates where it escapes what is not ASCII.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _default(section: type, key: str, comment: str) -> KeyLine:
    """Return the line of a key that keeps its default."""
    [value] = [field.default for field in fields(section) if field.name == key]
    return KeyLine(key, value, comment, active=False)


def _run_lines(run: NewRun) -> list[KeyLine]:
    return [
        KeyLine("name", run.name, "shown in invites, logs and metrics"),
        KeyLine("output", run.output, "final/: the trained model, step-N/: earlier ones, state/: checkpoints"),
        _default(RunSection, "peers", "who may serve a stage: who has an invite; or anyone"),
        KeyLine("export_every", run.checkpoint_every, "steps between two step-N/; 0: none", active=False),
        _default(RunSection, "keep_exports", "how many of the newest step-N/ stay"),
        _default(RunSection, "export_dtype", "of the weights at the beginning; or float32, bfloat16, float16"),
    ]


def _model_note(run: NewRun) -> str:
    model = run.model
    weights = "the weights in the folder" if model.has_weights else "random weights"
    return (
        f"{model.name}: {model.parameters / 1e6:,.1f} million parameters, from {weights}.\n"
        f"# Weights, gradients and optimizer take {readable_size(model.state_bytes)} of memory, over all stages."
    )


def _model_lines(run: NewRun) -> list[KeyLine]:
    if run.stages == 1:
        stages = "parts of the model. 1: each peer holds all of it, and a single peer is enough"
    else:
        stages = f"parts of the model; a peer holds one part, so that at least {run.stages} peers are needed"
    path = [] if run.model_path is None else [KeyLine("path", run.model_path, "a Hugging Face folder")]
    cut, groups = [run.model.blocks // 2], max(1, run.model.blocks // 2)
    return [
        *path,
        KeyLine("stages", run.stages, stages),
        KeyLine("cut", cut, "instead of stages: the first block of each stage but 0", active=False),
        _default(ModelSection, "dropout", "true: keep the dropout that the model's configuration asks for"),
        KeyLine("boundary", "bottleneck:64", "or maxout:K: less travels, by layers that are learnt", active=False),
        KeyLine("shared_blocks", groups, "so many groups of blocks share their weights", active=False),
        KeyLine("attention", "eager", "or sdpa: transformers' implementation, not the family's own", active=False),
    ]


_CONFIG_COMMENTS = {
    "vocab_size": "as many tokens as the tokenizer has",
    "max_position_embeddings": "the largest seq_len that the model can take",
    "n_positions": "the largest seq_len that the model can take",
    "num_hidden_layers": "the blocks that are cut into stages",
    "bos_token_id": "within the vocabulary, as the default of gpt2 is not",
    "eos_token_id": "within the vocabulary, as the default of gpt2 is not",
    "n_layer": "the blocks that are cut into stages",
}


def _config_lines(run: NewRun) -> list[KeyLine]:
    return [KeyLine(key, value, _CONFIG_COMMENTS.get(key, "")) for key, value in (run.model.config or {}).items()]


def _data_lines(run: NewRun) -> list[KeyLine]:
    tokenizer = "one token a byte: for any text" if run.tokenizer == "bytes" else "a tokenizer.json, or a folder"
    field = "the field with the text, in jsonl and parquet"
    chosen_field = run.text_field != DataSection.text_field
    return [
        KeyLine("path", run.data, "a file, a folder or a glob: plain text, jsonl or parquet"),
        KeyLine("text_field", run.text_field, field, active=chosen_field),
        KeyLine("tokenizer", run.tokenizer, tokenizer),
        KeyLine("seq_len", run.seq_len, "tokens in a sequence; more needs more memory and time"),
        _default(DataSection, "format", 'what a record is; or "prompt" (and completion), "chat" (messages)'),
        _default(DataSection, "packing", 'records one after another; or "bfd", "none": each by itself'),
        KeyLine("order", "shuffled", "the same shuffle in every epoch, by train.seed; or sequential"),
        KeyLine("validation_path", "held-out.txt", "other text, for validate_every below", active=False),
    ]


def _optimizer_lines(run: NewRun) -> list[KeyLine]:
    weights = (
        "low because the weights are trained already" if run.model.has_weights else "for fresh weights of this size"
    )
    return [
        KeyLine("name", "adamw", "the update rule; or lamb, sgd"),
        KeyLine("lr", run.lr, f"the highest rate, {weights}; lower it if the loss jumps up"),
        KeyLine("schedule", "cosine", "falls to 0 at the last step; or linear, constant"),
        KeyLine("warmup_steps", run.warmup_steps, "the first steps, in which the rate rises from 0"),
        _default(OptimizerSection, "betas", "decay rates of the moments"),
        _default(OptimizerSection, "weight_decay", "of every parameter"),
        _default(OptimizerSection, "state_bits", "of each number of a moment; 8: a quarter of their memory"),
        _default(OptimizerSection, "clip_grad_norm", "limit of the gradient's norm; 0: none"),
    ]


def _train_note(run: NewRun) -> str:
    return (
        f"A step is {run.microbatches} x {run.microbatch_sequences} x {run.seq_len} = {run.step_tokens:,} tokens, "
        "however many peers share it."
    )


def _train_lines(run: NewRun) -> list[KeyLine]:
    return [
        KeyLine("steps", run.steps, "may be raised later: start the trainer again, and the run goes on"),
        KeyLine("microbatches", run.microbatches, "of a step; the peers of a stage share them"),
        KeyLine(
            "microbatch_sequences", run.microbatch_sequences, "what a peer computes at once; more take more memory"
        ),
        KeyLine("checkpoint_every", run.checkpoint_every, "steps; at most these are lost when everything stops"),
        _default(TrainSection, "precision", "bf16: faster on GPUs that have it"),
        _default(TrainSection, "codec", "of what peers send each other: 8 bits a number; or fp16, none, adatopk"),
        _default(TrainSection, "reduce_codec", "of the gradients that the peers of a stage add up; or none: fp32"),
        _default(TrainSection, "delay", "1: compute a step while the gradients of the one before are reduced"),
        _default(TrainSection, "router", "how the next peer is chosen; or iwrr, flow"),
        _default(TrainSection, "placement", "how peers get their stages; or planned, by the links between all"),
        _default(TrainSection, "accumulate", "exact: the same bits whichever peers computed what"),
        _default(TrainSection, "seed", "of fresh weights and of the shuffle"),
        KeyLine("validate_every", run.checkpoint_every, "steps; needs data.validation_path", active=False),
    ]
