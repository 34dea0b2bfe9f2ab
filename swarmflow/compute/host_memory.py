"""Tensors in the memory of the host, from which a device with memory of its own copies at full speed."""

from __future__ import annotations

import logging
import mmap
import weakref
from contextlib import suppress

import torch
from torch import Tensor

log = logging.getLogger("swarmflow")


def host_zeros(elements: int, copied_to: torch.device) -> Tensor:
    """Return zeros, fp32 [elements], in the memory of the host.

    copied_to: the device to which they are copied again and again. For a CUDA device their pages are locked, if the
    system allows that. Torch's own pinned memory is not used: it comes in sizes of powers of two, which for a large
    stage may be twice what is needed, and is never given back.
    """
    if copied_to.type != "cuda" or not elements:
        return torch.zeros(elements)
    mapped = mmap.mmap(-1, 4 * elements)
    zeros = torch.frombuffer(mapped, dtype=torch.float32)  # keeps the mapping for as long as any view of it
    runtime = torch.cuda.cudart()
    with torch.cuda.device(copied_to):  # no other device gets a context for it
        failed = int(runtime.cudaHostRegister(zeros.data_ptr(), zeros.nbytes, 0))
    if failed:
        with suppress(RuntimeError):  # the error stays with the thread, whose next kernel would raise it
            torch.ones(1, device=copied_to)
        log.warning("the system locks no more memory (CUDA error %d): copies to the device are slower", failed)
    else:
        weakref.finalize(mapped, runtime.cudaHostUnregister, zeros.data_ptr())
    return zeros
