"""What a stage takes of its device and of the host, in either layout: `python -m benchmarks.state_memory`.

The figures are sums over the storages of the tensors that are alive after a step, not over what the code says of them.
On a CPU both memories are RAM: what belongs to the state or to reduced sums counts for the host, all the rest for the
device. See README.md.
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

import torch
from torch import Tensor

from swarmflow.compute.blocks import alignment
from swarmflow.compute.exact import EXPONENT
from swarmflow.compute.families import model_config
from swarmflow.compute.flat import rounding_of
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.weights import init_stage
from swarmflow.runtime.execution.served import Served

MODEL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 16_384,
    "max_position_embeddings": 128,
}
CUT = (2, 4)
SEQUENCES, TOKENS, MICROBATCHES = 1, 64, 2
ACCUMULATE = {"fp32": ("fp32", "none"), "blockwise16": ("fp32", "blockwise16"), "exact": ("exact", "none")}


def build(number: int, precision: str, sums: str, *, in_host_memory: bool) -> Served:
    """Return a stage of the model at version 0."""
    rounding = rounding_of(*ACCUMULATE[sums], MICROBATCHES)
    stage = build_stage(
        model_config(MODEL),
        CUT,
        number,
        device="cuda" if torch.cuda.is_available() else "cpu",
        rounding=rounding,
        align=alignment(32),
        in_host_memory=in_host_memory,
    )
    init_stage(stage, 0)
    optimizer = make_optimizer(OptimizerSettings())
    for group in stage.groups.values():
        group.allocate(optimizer.state_names())
    return Served((StageRunner(stage, precision),), optimizer, 0)


def train(served: Served, step: int) -> None:
    """Compute a step's microbatches one after the other, so that no graph is left, and reduce it; no update yet."""
    runner, stage = served.runner(step), served.stage
    runner.begin(EXPONENT)
    drawn = torch.Generator().manual_seed(step)
    for index in range(MICROBATCHES):
        x = torch.randn(SEQUENCES, TOKENS, int(MODEL["hidden_size"]), generator=drawn)
        ids = torch.randint(int(MODEL["vocab_size"]), (SEQUENCES, TOKENS), generator=drawn)
        number = step * MICROBATCHES + index
        if stage.last:
            runner.loss(number, x, ids, number=number)
        else:
            runner.forward(number, ids if stage.first else x)
            runner.backward(number, x, number)
    for name, group in stage.groups.items():
        served.reduced[name] = group.sums.empty()
        served.reduced[name].total(0, group.sums.elements, [group.sums])


def storages(tensors: list[Tensor]) -> dict[int, int]:
    """Return the bytes of each storage of these tensors, by its address."""
    found = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in found if storage.nbytes()}


def alive() -> dict[int, int]:
    """Return the storages of all tensors that this process has."""
    gc.collect()
    return storages([each for each in gc.get_objects() if issubclass(type(each), Tensor) and not each.is_meta])


def measure(number: int, precision: str, sums: str, *, in_host_memory: bool) -> tuple[int, int, int]:
    """Return (parameters, bytes of the device, bytes of the host) of a stage that has reduced its second step."""
    before = alive()
    served = build(number, precision, sums, in_host_memory=in_host_memory)
    train(served, 0)
    served.update(0, 1.0 / (SEQUENCES * TOKENS * MICROBATCHES), 1e-3)
    train(served, 1)
    mine = {address: size for address, size in alive().items() if address not in before}
    kept: list[Tensor] = []
    for name, group in served.stage.groups.items():
        kept += [*group.tensors().values(), *served.reduced[name].tensors()]
    on_host = storages(kept) if in_host_memory else {}
    total, host = sum(mine.values()), sum(size for address, size in mine.items() if address in on_host)
    return served.stage.layout.parameters, total - host, host


def main() -> None:
    """Print a line for each stage, precision, kind of sums and layout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", nargs="*", choices=("bf16", "fp32"), default=["bf16", "fp32"])
    parser.add_argument("--sums", nargs="*", choices=tuple(ACCUMULATE), default=list(ACCUMULATE))
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("bytes a parameter, AdamW, without activations      --state device      --state host")
    print("stage    parameters  precision  sums                      device    device      host")
    for number in range(len(CUT) + 1):
        for precision in given.precision:
            for sums in given.sums:
                parameters, whole, _ = measure(number, precision, sums, in_host_memory=False)
                _, device, host = measure(number, precision, sums, in_host_memory=True)
                each = (f"{size / parameters:10.2f}" for size in (whole, device, host))
                print(f"{number:>5}  {parameters:>12,}  {precision:>9}  {sums:<18}{'  '.join(each)}", flush=True)


if __name__ == "__main__":
    main()
