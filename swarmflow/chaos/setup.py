"""The settings of the chaos command, and the RUN.toml that follows from them. Checked without loading torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmflow.chaos.attacks.kinds import chosen
from swarmflow.errors import ConfigError

# Small, so that a hundred steps take a minute or two; enough microbatches that a step has a beginning and an end.
SEQ_LEN = 32
SEQUENCES = 4
MICROBATCHES = 32
CORPUS_BYTES = 1 << 18
CHECKPOINT_EVERY = 10
# eps is that of the tests: with a smaller one, Adam makes large updates of mere rounding errors.
OPTIMIZER: dict[str, Any] = {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-3, "weight_decay": 0.1}


@dataclass(frozen=True)
class Setup:
    """The settings of a campaign."""

    seeds: tuple[int, ...]
    rates: tuple[float, ...]  # of faults; 0 is the undisturbed run
    steps: int
    stages: int
    peers: int
    trainers: int
    accumulate: str
    codec: str
    lose_stage: bool
    hit_trainers: bool  # whether trainers have faults too
    folder: Path | None  # of all files; None: a temporary one, which is kept only after a failure
    json_file: Path | None
    attacks: tuple[str, ...] = ()  # names of attacks; with any, no faults are caused

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Setup:
        """Make it from click's values. Raises ConfigError."""
        first, folder, json_file = values["first_seed"], values["folder"], values["json_file"]
        setup = cls(
            seeds=tuple(range(first, first + values["seeds"])),
            rates=_rates(values["rates"]),
            steps=values["steps"],
            stages=values["stages"],
            peers=values["peers"],
            trainers=values["trainers"],
            accumulate=values["accumulate"],
            codec=values["codec"],
            lose_stage=values["lose_stage"],
            hit_trainers=not values["no_trainers"],
            folder=Path(folder) if folder else None,
            json_file=Path(json_file) if json_file else None,
            attacks=tuple(kind.name for kind in chosen(tuple(values["attack"]))),
        )
        if setup.peers < setup.stages:
            raise ConfigError(f"--peers {setup.peers}: each of the {setup.stages} stages needs one")
        if setup.attacks and (setup.codec != "none" or setup.stages < 2):
            raise ConfigError("--attack needs --codec none, as the plain loop has, and two --stages or more")
        if setup.accumulate == "fp32" and setup.codec != "none":
            raise ConfigError(
                f"--codec {setup.codec} needs --accumulate exact: in fp32 a run is compared with a plain loop, "
                "which compresses nothing"
            )
        return setup

    @property
    def disturbed(self) -> tuple[tuple[int, float], ...]:
        """Return (seed, rate) of the disturbed runs."""
        return tuple((seed, rate) for seed in self.seeds for rate in self.rates if rate > 0)

    @property
    def undisturbed(self) -> bool:
        """Whether the undisturbed run is needed: by itself, or as the reference of the others."""
        return 0.0 in self.rates or self.accumulate == "exact"

    def model_config(self) -> dict[str, Any]:
        """The model's config.json: one that shares its embedding with the head, so that two stages share a weight."""
        return {
            "model_type": "gpt2",
            "n_embd": 48,
            "n_layer": max(4, self.stages),
            "n_head": 4,
            "vocab_size": 256,
            "n_positions": SEQ_LEN,
            "bos_token_id": None,
            "eos_token_id": None,
        }

    def run_settings(self, model: Path, corpus: Path) -> dict[str, dict[str, Any]]:
        """Return RUN.toml, the same for every run."""
        return {
            "run": {"name": "chaos", "output": "out"},
            "model": {"path": str(model), "stages": self.stages, "cut": self._cut()},
            "data": {"path": str(corpus), "tokenizer": "bytes", "seq_len": SEQ_LEN, "order": "sequential"},
            "optimizer": OPTIMIZER,
            "train": {
                "steps": self.steps,
                "microbatches": MICROBATCHES,
                "microbatch_sequences": SEQUENCES,
                "precision": "fp32",
                "codec": self.codec,
                "reduce_codec": "none",  # as the plain loop adds up
                "accumulate": self.accumulate,
                "checkpoint_every": CHECKPOINT_EVERY,
            },
        }

    def _cut(self) -> list[int]:
        """The first block of each stage but the first: measured cuts differ, and a codec does with them."""
        blocks = self.model_config()["n_layer"]
        return [-(-blocks * stage // self.stages) for stage in range(1, self.stages)]


def _rates(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        rates = ()
    if not rates or not all(0 <= rate <= 1 for rate in rates):
        raise ConfigError(f"--rates {text}: give numbers from 0 to 1, separated by commas")
    return rates
