"""A rival: `torch.distributed.pipelining` on one machine, a process a stage, which prints a line a step.

`python -m benchmarks.pipelining SETTINGS.json RANK` trains the first or second half of the model with Schedule1F1B over
gloo: transformers' layers, torch's fused AdamW, and the gradients clipped by the norm over both halves. Settings are
those of benchmarks.plain, and `rendezvous`, a file that does not exist yet.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

STAGES = 2


class Half(nn.Module):
    """Token ids [B, T] -> hidden [B, T, H], or hidden -> logits: the layers of a llama that belong to one stage."""

    def __init__(self, model: Any, rank: int) -> None:  # noqa: ANN401  # untyped in transformers
        super().__init__()
        cut = len(model.model.layers) // STAGES
        self.layers = model.model.layers[:cut] if rank == 0 else model.model.layers[cut:]
        self.rotary = model.model.rotary_emb
        self.embedding = model.model.embed_tokens if rank == 0 else None
        self.head = nn.Sequential(model.model.norm, model.lm_head) if rank == STAGES - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Attention is causal where no mask is given."""
        hidden = x if self.embedding is None else self.embedding(x)
        places = torch.arange(hidden.shape[1]).unsqueeze(0)
        angles = self.rotary(hidden, places)
        for layer in self.layers:
            hidden = layer(hidden, position_ids=places, position_embeddings=angles)
        return hidden if self.head is None else self.head(hidden)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over the tokens of a microbatch; the schedule divides gradients by the number of microbatches."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def clip(parameters: list[nn.Parameter]) -> None:
    """Clip to a norm of 1 over both halves, as torch's `clip_grad_norm_` does over one model."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squared = torch.nn.utils.get_total_norm(gradients).square()
    dist.all_reduce(squared)
    torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, squared.sqrt())


def train(settings: dict[str, Any], rank: int) -> None:
    """settings: as benchmarks.plain; one thread a process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{settings['rendezvous']}", rank=rank, world_size=STAGES)
    factory: Any = AutoModelForCausalLM  # untyped in transformers
    half = Half(factory.from_config(AutoConfig.for_model(**settings["model"]), dtype=torch.float32), rank)
    half.train()
    chosen, parameters = settings["optimizer"], list(half.parameters())
    decay, betas = chosen["weight_decay"], (chosen["betas"][0], chosen["betas"][1])
    optimizer = torch.optim.AdamW(parameters, lr=chosen["lr"], betas=betas, weight_decay=decay, fused=True)
    count, sequences, seq_len = settings["microbatches"], settings["sequences"], settings["seq_len"]
    stage = PipelineStage(half, rank, STAGES, torch.device("cpu"))
    schedule = Schedule1F1B(stage, count, loss_fn=token_loss)
    tokens = torch.frombuffer(bytearray(Path(settings["corpus"]).read_bytes()), dtype=torch.uint8).long()
    width = sequences * seq_len
    started = time.perf_counter()
    for step in range(settings["steps"]):
        first = [(step * count + index) * width % (len(tokens) - width - 1) for index in range(count)]
        if rank == 0:
            schedule.step(torch.cat([tokens[at : at + width].view(sequences, -1) for at in first]))
        else:
            schedule.step(target=torch.cat([tokens[at + 1 : at + width + 1].view(sequences, -1) for at in first]))
        clip(parameters)
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        if rank == STAGES - 1:
            print(json.dumps({"step": step, "tokens": count * width, "seconds": now - started}), flush=True)
        started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    train(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), int(sys.argv[2]))
