"""The device of a process: chosen, checked, and measured."""

from __future__ import annotations

import time

import torch

from swarmflow.errors import ConfigError
from swarmflow.system import available_memory_bytes

_TRIAL_SIZE = 256
_TRIALS = 150
_CUDA_TRIAL_SIZE = 4096
_CUDA_PRODUCTS = 8  # of a trial
_CUDA_TRIALS = 5


def choose_device(name: str) -> torch.device:
    """Return the device of a name: `auto`, `cpu`, `cuda:N` or `mps`. Raises ConfigError when it is not there.

    auto: the first CUDA device, else the CPU. `mps`, Apple's GPUs, is used only where it is named (docs/platforms.md).
    """
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    if name == "mps":
        if torch.backends.mps.is_available():
            return torch.device("mps")
        raise ConfigError("--device mps: this machine, or this build of torch, has no Metal device; allowed: auto, cpu")
    kind, _, number = name.partition(":")
    if kind == "cuda" and (number.isdigit() or not number):
        count = torch.cuda.device_count()
        if int(number or 0) < count:
            return torch.device(f"cuda:{number or 0}")
        there = f"cuda:0 to cuda:{count - 1}" if count else "no CUDA device"
        raise ConfigError(f"--device {name}: this machine has {there}; allowed: auto, cpu, cuda:N, mps")
    raise ConfigError(f"--device {name}: allowed are auto, cpu, cuda:N and mps")


def measure_speed(device: torch.device, precision: str = "fp32") -> float:
    """How fast the device multiplies matrices, in GFLOP/s: how peers compare, nothing more.

    The best of many short trials: others that compute on this machine at the moment must not make it look slow, or
    peers that start together on one machine would be spread by chance. precision: of the run; a CUDA device multiplies
    in it, and matrices so large that a launch takes no part of the time.
    """
    if device.type == "cuda":
        return _cuda_speed(device, torch.bfloat16 if precision == "bf16" else torch.float32)
    a = torch.ones(_TRIAL_SIZE, _TRIAL_SIZE, device=device)
    best_s = float("inf")
    for _ in range(_TRIALS):
        began_s = time.perf_counter()
        a = (a @ a).clamp_(max=1.0)
        float(a[0, 0])  # waits for a device that computes behind our back
        best_s = min(best_s, time.perf_counter() - began_s)
    return 2 * _TRIAL_SIZE**3 / best_s / 1e9


def _cuda_speed(device: torch.device, dtype: torch.dtype) -> float:
    a = torch.full((_CUDA_TRIAL_SIZE, _CUDA_TRIAL_SIZE), 1.0 / _CUDA_TRIAL_SIZE, device=device, dtype=dtype)
    best_s = float("inf")
    for _ in range(_CUDA_TRIALS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record(torch.cuda.current_stream(device))
        for _ in range(_CUDA_PRODUCTS):
            torch.mm(a, a)
        ended.record(torch.cuda.current_stream(device))
        ended.synchronize()
        best_s = min(best_s, began.elapsed_time(ended) / 1e3)
    return 2 * _CUDA_PRODUCTS * _CUDA_TRIAL_SIZE**3 / best_s / 1e9


def free_memory_bytes(device: torch.device) -> int:
    """Memory that a process may still take on the device."""
    if device.type == "cuda":
        cached_bytes = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached_bytes
    available_bytes = available_memory_bytes()
    if device.type == "mps":  # it shares the machine's memory, of which Metal lets it have a part
        allowed_bytes = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        return max(0, min(available_bytes, allowed_bytes))
    return available_bytes
