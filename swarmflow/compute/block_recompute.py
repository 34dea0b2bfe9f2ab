"""Blocks that keep only what enters them for the backward pass, and compute the rest once more when that comes.

Chen et al., Training Deep Nets with Sublinear Memory Cost (2016). The operations are the same, and so are the bits:
dropout draws the same masks again, since these follow from the microbatch and the layer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

Again = contextlib.AbstractContextManager[object]


class BlockRecompute:
    """Has the blocks of a stage recomputed while `on`. A backward pass may then not be split in two parts.

    Each part would compute a block again, and the second one does for each of its operators.
    """

    def __init__(
        self, blocks: Iterable[tuple[int, nn.Module]], again: Callable[[int], Again], largest: float | None = None
    ) -> None:
        """blocks: with their index in the whole model. again: called in the forward pass of a block, with its index.

        It returns the context in which the block is computed again. largest: the share of what all blocks keep that the
        largest one does; None: they are alike.
        """
        self.on = False
        count = 0
        for layer, block in blocks:
            count += 1
            self._wrap(layer, block, again)
        self.largest = largest or 1 / max(1, count)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Keep all that the forward passes within would keep."""
        before, self.on = self.on, False
        try:
            yield
        finally:
            self.on = before

    def _wrap(self, layer: int, block: nn.Module, again: Callable[[int], Again]) -> None:
        """Replace the forward function of a block; its hooks are called once, outside."""
        forward = block.forward

        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if not self.on:
                return forward(*args, **kwargs)
            names, given = tuple(kwargs), len(args)

            def positional(*values: Any) -> Any:  # noqa: ANN401
                return forward(*values[:given], **dict(zip(names, values[given:], strict=True)))

            # By position: torch saves those inputs as autograd saves tensors, so that they are counted.
            return checkpoint(
                positional,
                *args,
                *kwargs.values(),
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=lambda: (contextlib.nullcontext(), again(layer)),
            )

        block.forward = run
