"""The settings of a new run, chosen by the size of its model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from swarmflow.errors import ModelError
from trainers.init.options import InitOptions
from trainers.init.sizes import POSITIONS, NewModel, find_model
from trainers.init.text import find_text
from trainers.tokens import open_tokenizer

STAGE_BYTES = 6_000_000_000  # of weights, gradients and optimizer state: fits a machine, or a GPU, with 8 GB
FINE_TUNING_LR = 2e-5
FINE_TUNING_STEPS = 200
WARMUP_STEPS_MAX = 100
CHECKPOINT_STEPS_MAX = 100


@dataclass(frozen=True)
class TrainingScale:
    """Settings that go with models up to a size; learning rates are for fresh weights and AdamW."""

    parameters_max: float
    seq_len: int
    microbatches: int
    microbatch_sequences: int
    steps: int
    lr: float


# A step of up to 60 million parameters takes seconds to a minute on two CPU cores. Larger models are for GPUs or many
# machines: the gradient of more tokens is less noisy, and more microbatches keep more peers busy.
SCALES = (
    TrainingScale(10e6, seq_len=128, microbatches=8, microbatch_sequences=4, steps=300, lr=3e-3),
    TrainingScale(60e6, seq_len=256, microbatches=8, microbatch_sequences=2, steps=1000, lr=1e-3),
    TrainingScale(200e6, seq_len=512, microbatches=16, microbatch_sequences=2, steps=5000, lr=6e-4),
    TrainingScale(600e6, seq_len=1024, microbatches=32, microbatch_sequences=2, steps=20_000, lr=3e-4),
    TrainingScale(float("inf"), seq_len=1024, microbatches=64, microbatch_sequences=2, steps=50_000, lr=2e-4),
)


@dataclass(frozen=True)
class NewRun:
    """All that the RUN.toml of a new run says. Paths are as written there: relative where they are in its folder."""

    name: str
    output: str
    model: NewModel
    model_path: str | None
    stages: int
    data: str
    tokenizer: str
    text_field: str
    seq_len: int
    lr: float
    warmup_steps: int
    steps: int
    microbatches: int
    microbatch_sequences: int
    checkpoint_every: int

    @property
    def step_tokens(self) -> int:
        """The tokens of a step."""
        return self.microbatches * self.microbatch_sequences * self.seq_len


def plan_run(options: InitOptions) -> NewRun:
    """Choose what the options leave open. Raises DataError, ModelError: no text, no model, no tokenizer."""
    home = options.out.parent
    data = find_text(options.folder, options.data, home)
    tokenizer = _local(options.tokenizer) if options.tokenizer else "bytes"
    model = find_model(options.model, open_tokenizer(tokenizer).vocab_size, max(POSITIONS, options.seq_len or 0))
    if options.tokenizer is None and model.path is not None:
        if model.has_weights and not model.has_tokenizer:
            raise ModelError(
                f"--model {options.model} has weights and no tokenizer.json: name its tokenizer with --tokenizer"
            )
        tokenizer = str(model.path) if model.has_tokenizer else tokenizer
    if options.stages is not None and options.stages > model.blocks:
        raise ModelError(f"--stages {options.stages}: {options.model} has {model.blocks} blocks, at least one for each")
    scale = next(scale for scale in SCALES if model.parameters <= scale.parameters_max)
    steps = options.steps or (FINE_TUNING_STEPS if model.has_weights else scale.steps)
    return NewRun(
        name=options.name or _name_of(data),
        output=_free_name(home, "out"),
        model=model,
        model_path=None if model.path is None else written_path(str(model.path), home),
        stages=options.stages or min(model.blocks, 1 + model.state_bytes // STAGE_BYTES),
        data=written_path(data, home),
        tokenizer=written_path(tokenizer, home),
        text_field=options.text_field,
        seq_len=options.seq_len or min(scale.seq_len, model.positions or scale.seq_len),
        lr=FINE_TUNING_LR if model.has_weights else scale.lr,
        warmup_steps=min(WARMUP_STEPS_MAX, steps // 10),
        steps=steps,
        microbatches=scale.microbatches,
        microbatch_sequences=scale.microbatch_sequences,
        checkpoint_every=max(1, min(CHECKPOINT_STEPS_MAX, steps // 10)),
    )


def written_path(path: str, home: Path) -> str:
    """Return an absolute path as RUN.toml in `home` names it; anything else, such as `bytes`, as it is."""
    if not Path(path).is_absolute() or not Path(path).is_relative_to(home):
        return path
    relative = str(Path(path).relative_to(home))
    return relative if relative != "bytes" else f"./{relative}"


def _local(tokenizer: str) -> str:
    """Return the absolute path of a tokenizer that is a file or folder here, else its name."""
    path = Path(tokenizer).expanduser()
    return str(path.absolute()) if tokenizer != "bytes" and path.exists() else tokenizer


def _name_of(data: str) -> str:
    """Return a run's name from the path of its text: of a glob, that of the folder before its first pattern."""
    parts = [part for part in Path(data).parts if not re.search(r"[*?\[]", part)]
    stem = Path(parts[-1]).stem if parts else ""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")[:64] or "run"


def _free_name(home: Path, name: str) -> str:
    """Return the first of NAME, NAME-2, ... that nothing in a folder has."""
    number, free = 1, name
    while (home / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free
