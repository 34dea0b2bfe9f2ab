"""A device beside the CPU, or the CPU where there is none: `python -m benchmarks.gpu [--device cuda:0] [--compile]`.

Prints in one run: tokens/s of a swarm of two stages on one device over loopback beside one plain loop in bf16 with the
same model and microbatches, and of the same swarm with compiled blocks (`--compile`); peak bytes a parameter of a stage
that computes, the share of copies that are made while kernels run, and the speed of the codec. See README.md beside
this file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch.nn.functional import cross_entropy

from swarmflow.compute.codec import codec_named
from swarmflow.compute.device import choose_device
from swarmflow.compute.device_layer import DeviceLayer, StreamName, layer_of
from swarmflow.compute.device_work import DeviceWork
from swarmflow.compute.families import model_config
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.weights import init_stage
from swarmflow.demo.corpus import write_corpus
from swarmflow.local.swarm import LocalSwarm, terminable

STAGES = 2
STEPS = 4
CODEC_REPEATS = 20
PASSES = 8
RUN_S = 900.0
OPTIMIZER = {"name": "adamw", "lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}
_LLAMA = {"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 2048}
# For a GPU 0.8 billion parameters in microbatches of 4 x 1,024 tokens; for a CPU a thousandth of the work.
LARGE = {
    "model": {
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
    },
    "microbatches": 16,
    "sequences": 4,
    "seq_len": 1024,
}
SMALL = {
    "model": {
        **_LLAMA,
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
    "microbatches": 8,
    "sequences": 1,
    "seq_len": 128,
}

T = TypeVar("T")


def run_plain(work: dict[str, Any], device: torch.device, corpus: Path) -> list[float]:
    """Tokens/s of each step but the first of transformers' model under autocast to bf16, with torch's fused AdamW."""
    from transformers import AutoConfig, AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM  # untyped in transformers
    model = factory.from_config(AutoConfig.for_model(**work["model"]), dtype=torch.float32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    text = torch.frombuffer(bytearray(corpus.read_bytes()), dtype=torch.uint8).long()
    count, sequences, width = work["microbatches"], work["sequences"], work["sequences"] * work["seq_len"]
    rates = []
    for step in range(STEPS):
        began_s = time.perf_counter()
        for index in range(count):
            first = (step * count + index) * width % (len(text) - width - 1)
            tokens = text[first : first + width + 1].to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                logits = model(input_ids=tokens[:-1].view(sequences, -1), use_cache=False).logits
            torch.autograd.backward(cross_entropy(logits.flatten(0, 1).float(), tokens[1:]) / count)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        float(norm)
        _finish(device)
        rates.append(count * width / (time.perf_counter() - began_s))
    return rates[1:]


def run_swarm(
    work: dict[str, Any], device: torch.device, corpus: Path, folder: Path, *peer_options: str
) -> list[float]:
    """Tokens/s of each step but the first of two peers on the device, from commit to commit."""
    settings = {
        "run": {"name": "gpu", "output": "out"},
        "model": {"config": work["model"], "cut": [work["model"]["num_hidden_layers"] // STAGES]},
        "data": {"path": str(corpus), "tokenizer": "bytes", "seq_len": work["seq_len"]},
        "optimizer": OPTIMIZER,
        "train": {
            "steps": STEPS,
            "microbatches": work["microbatches"],
            "microbatch_sequences": work["sequences"],
            "precision": "bf16",
            "codec": "blockwise8",
            "checkpoint_every": STEPS,
        },
    }
    with LocalSwarm(folder, settings, threads=1) as swarm:
        swarm.start_trainer()
        for stage in range(STAGES):
            swarm.start_peer("--capacity", "4", "--device", str(device), *peer_options, stage=stage)
        swarm.wait(lambda: all(each.exit_code is not None for each in swarm.processes), "the end of the run", RUN_S)
        steps = swarm.steps()
    return [after["tokens"] / (after["time"] - before["time"]) for before, after in itertools.pairwise(steps)]


def measure_stage(work: dict[str, Any], device: torch.device) -> tuple[float | None, float | None]:
    """Return the peak bytes a parameter of the last stage, and the share of copies under kernels; None: no GPU."""
    config = model_config(work["model"])
    stage = build_stage(config, [work["model"]["num_hidden_layers"] // STAGES], 1, device=device)
    init_stage(stage, 0)
    runner, layer, codec = StageRunner(stage, "bf16"), layer_of(device), codec_named("blockwise8")
    shape = work["sequences"], work["seq_len"], work["model"]["hidden_size"]
    wire = codec.encode(torch.randn(shape).bfloat16())
    targets = torch.randint(256, shape[:2])

    def decode(work: DeviceWork) -> torch.Tensor:
        return work.hand_over(codec.decode(wire, shape, torch.bfloat16, work=work))

    def passes() -> None:
        """As a peer's threads do: each is decoded while the one before it computes, and its gradient is encoded."""
        waiting = []
        for _ in range(PASSES):
            x = _run(layer, StreamName.COPY_IN, decode)

            def body(work: DeviceWork, x: torch.Tensor = x) -> torch.Tensor:
                gradient = runner.launch_loss("m", x, targets, work=work)[2]
                assert gradient is not None, "it is not the first stage"
                return gradient

            waiting.append(layer.run(StreamName.COMPUTE, body, lambda value, _: value, _raised))
            if len(waiting) == 2:
                _encoded(layer, _result(waiting.pop(0)))
        for launched in waiting:
            _encoded(layer, _result(launched))

    passes()
    if device.type != "cuda":
        return None, None
    torch.cuda.reset_peak_memory_stats(device)
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        passes()
        _finish(device)
    parameters = sum(group.params.numel() for group in stage.groups.values())
    spans = [
        (each.name, each.time_range.start, each.time_range.end)
        for each in profile.events()
        if "CUDA" in str(each.device_type)
    ]
    return torch.cuda.max_memory_allocated(device) / parameters, share_under_kernels(spans)


def share_under_kernels(spans: list[tuple[str, float, float]]) -> float:
    """Return the share of the time of copies (spans named Memcpy...) in which another span, a kernel, runs too."""
    kernels = sorted((start, end) for name, start, end in spans if not name.startswith(("Memcpy", "Memset")))
    merged: list[list[float]] = []
    for start, end in kernels:
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    copies = [(start, end) for name, start, end in spans if name.startswith("Memcpy")]
    whole = sum(end - start for start, end in copies)
    under = sum(max(0.0, min(end, stop) - max(start, begin)) for start, end in copies for begin, stop in merged)
    return under / whole if whole else 0.0


def measure_codec(device: torch.device, elements: int) -> tuple[float, float]:
    """Return the GB/s of bf16 tensors that blockwise8 encodes and decodes, with the copies from and to the host."""
    layer, codec = layer_of(device), codec_named("blockwise8")
    tensor = torch.randn(elements, device=device).bfloat16()
    wire = codec.encode(tensor)

    def best(stream: StreamName, body: Callable[[DeviceWork], object]) -> float:
        times = []
        for _ in range(CODEC_REPEATS):
            began_s = time.perf_counter()
            _run(layer, stream, body)
            times.append(time.perf_counter() - began_s)
        return tensor.nbytes / min(times) / 1e9

    encoded = best(StreamName.COPY_OUT, lambda work: codec.begin_encode(tensor, work))
    return encoded, best(StreamName.COPY_IN, lambda work: codec.decode(wire, (elements,), tensor.dtype, work=work))


def _encoded(layer: DeviceLayer, gradient: torch.Tensor) -> None:
    _run(layer, StreamName.COPY_OUT, lambda work: codec_named("blockwise8").begin_encode(gradient.bfloat16(), work))


def _run(layer: DeviceLayer, stream: StreamName, body: Callable[[DeviceWork], T]) -> T:
    result: T = _result(layer.run(stream, body, lambda value, _: value, _raised))
    return result


def _result(launched: Any) -> Any:  # noqa: ANN401  # of any type
    if launched.wait is not None:
        launched.wait()
    return launched.settle()


def _raised(error: Exception) -> NoReturn:
    raise error


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:N")
    parser.add_argument("--compile", action="store_true", help="a swarm with compiled blocks, too")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)  # the loop alone, in a process of its own
    options = parser.parse_args()
    device = choose_device(options.device)
    on_gpu = device.type == "cuda"
    work = LARGE if on_gpu else SMALL
    if options.plain is not None:
        print(json.dumps(run_plain(work, device, options.plain)))
        return
    print(f"device: {torch.cuda.get_device_name(device) if on_gpu else 'the CPU (a small model)'}", flush=True)
    with tempfile.TemporaryDirectory(prefix="swarmflow-benchmark-") as temporary:
        folder = Path(temporary)
        corpus = folder / "corpus.txt"
        write_corpus(corpus)
        command = [sys.executable, "-m", "benchmarks.gpu", "--device", str(device), "--plain", str(corpus)]
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=RUN_S, check=True).stdout
        plain = statistics.median(json.loads(printed.splitlines()[-1]))
        print(f"plain bf16 loop            {plain:10.0f} tokens/s", flush=True)
        for name, *peer_options in [["two stages over loopback"], ["with compiled blocks", "--compile"]]:
            if not peer_options or options.compile:
                swarm = statistics.median(run_swarm(work, device, corpus, folder / name, *peer_options))
                print(f"{name:26s} {swarm:10.0f} tokens/s, {swarm / plain:.2f} of it", flush=True)
    peak, share = measure_stage(work, device)
    print(f"peak bytes a parameter     {'n/a' if peak is None else f'{peak:.1f}':>10s}")
    print(f"share of copies under kernels {'n/a' if share is None else f'{share:.2f}':>7s}")
    encoded, decoded = measure_codec(device, 1 << (24 if on_gpu else 20))
    print(f"blockwise8                 encodes {encoded:.2f} GB/s, decodes {decoded:.2f} GB/s")


if __name__ == "__main__":
    with terminable():
        main()
