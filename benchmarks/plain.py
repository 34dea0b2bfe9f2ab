"""The yardstick: the same model in one plain PyTorch process, which prints a line a step.

`python -m benchmarks.plain SETTINGS.json` trains as one does without a swarm: transformers' model, torch.optim.AdamW,
clip_grad_norm_, the gradients of a step's microbatches added up.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM


def train(settings: dict[str, Any]) -> None:
    """settings: model (a configuration), corpus, seq_len, microbatches, sequences, steps, threads, optimizer."""
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    factory: Any = AutoModelForCausalLM  # untyped in transformers
    model = factory.from_config(AutoConfig.for_model(**settings["model"]), dtype=torch.float32)
    model.train()
    chosen = settings["optimizer"]
    decay, betas = chosen["weight_decay"], (chosen["betas"][0], chosen["betas"][1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=chosen["lr"], betas=betas, weight_decay=decay)
    tokens = torch.frombuffer(bytearray(Path(settings["corpus"]).read_bytes()), dtype=torch.uint8).long()
    width, count = settings["sequences"] * settings["seq_len"], settings["microbatches"]
    started = time.perf_counter()
    for step in range(settings["steps"]):
        for index in range(count):
            first = (step * count + index) * width % (len(tokens) - width - 1)
            inputs = tokens[first : first + width].view(settings["sequences"], -1)
            targets = tokens[first + 1 : first + width + 1]
            logits = model(input_ids=inputs, use_cache=False).logits
            loss = cross_entropy(logits.flatten(0, 1), targets) / count
            torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        print(json.dumps({"step": step, "tokens": count * width, "seconds": now - started}), flush=True)
        started = now


if __name__ == "__main__":
    train(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
