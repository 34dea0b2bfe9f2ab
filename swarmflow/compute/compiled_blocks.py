"""Blocks that torch.compile makes kernels for: fewer and larger ones, which read and write memory less often."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import torch
from torch._dynamo import config as tracer_config
from torch._functorch import config as compiler_config
from torch._inductor import config as kernels_config

from swarmflow.compute.families import one_line
from swarmflow.compute.grouped_stage import StageInput
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import Stage

# All blocks of all families share one function of transformers, and torch computes without a word as before where it
# has compiled one 8 times: blocks that differ, such as gpt2's with scale_attn_by_inverse_layer_idx, and several shapes.
KERNELS_MAX = 1024


def compile_blocks(runners: Sequence[StageRunner], trial: StageInput) -> str | None:
    """Compile the blocks of a stage, both passes, by a trial forward; return why they are not, None: they are.

    runners: of the same stage. trial: a microbatch of its input. Each shape has kernels of its own, or a microbatch
    that is computed again would have other bits once kernels for any shape had taken the place of the first ones.
    """
    stage = runners[0].stage
    if not isinstance(stage, Stage):
        return "only the blocks of a decoder are compiled, and this is a module"
    if stage.dropout:
        return "its dropout would draw other masks when a microbatch is computed again"
    tracer_config.recompile_limit = tracer_config.accumulated_recompile_limit = KERNELS_MAX
    kernels_config.compile_threads = 1  # no processes that a peer which is killed would leave behind
    compiler = partial(torch.compile, dynamic=False)
    try:
        # By itself torch compiles the backward pass in the first one, for which others would wait.
        with compiler_config.patch(force_non_lazy_backward_lowering=True), ExitStack() as stack:
            for runner in runners:
                stack.enter_context(runner.stage.block_recompute.compiling(compiler))
            for runner in runners:
                runner.activation_bytes(trial)
    except Exception as error:  # a compiler that is missing, or any of its own
        return one_line(error)
    return None
