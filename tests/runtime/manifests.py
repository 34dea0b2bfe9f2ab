"""The manifest of a small run, for the tests of what reads one."""

from __future__ import annotations

from typing import Any

from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.manifest import Manifest
from tests.compute.models import VOCAB, config_of

CUT = (2,)
# How gradients add up, by a word for it.
SUMS = {
    "exact": {"accumulate": "exact"},
    "fp32": {"accumulate": "fp32"},
    "blockwise16": {"accumulate": "fp32", "reduce_codec": "blockwise16"},
}
SHAPE = (2, 8, 32)  # of a boundary tensor: B, T, H


def manifest(**changes: Any) -> Manifest:  # noqa: ANN401  # fields of many types
    """Two stages of a tiny gpt2, 4 microbatches a step."""
    fields: dict[str, Any] = {
        "run_id": "r",
        "name": "r",
        "software": "0",
        "model": config_of("gpt2"),
        "cut": CUT,
        "costs": (),
        "parameters": (20_000, 20_000),
        "dropout": False,
        "from_seed": True,
        "seed": 0,
        "vocab_size": VOCAB,
        "hidden_size": SHAPE[2],
        "seq_len": SHAPE[1],
        "microbatch_sequences": SHAPE[0],
        "microbatches": 4,
        "optimizer": "adamw",
        "betas": (0.9, 0.95),
        "momentum": 0.9,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "precision": "fp32",
        "accumulate": "exact",
        "codec": "blockwise8",
        "reduce_codec": "none",
        "delay": 0,
        "router": "shortest",
        "tied": True,
        "tokenizer": "bytes",
        "corpus": "",
        "export_dtype": "float32",
        "config": {},
        "timeouts": Timeouts(),
    }
    return Manifest(**fields | changes)
