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
Forward = Callable[..., Any]


class BlockRecompute:
    """Has the blocks of a stage recomputed while `on`, by their own functions or compiled ones."""

    def __init__(self, blocks: Iterable[tuple[int, nn.Module]], again: Callable[[int], Again]) -> None:
        """blocks: with their index in the whole model. again: called in the forward pass of a block, with its index.

        It returns the context in which the block is computed again.
        """
        self.on = False
        self.compiled = False
        self._forwards: dict[int, Forward] = {}  # what computes each block
        self._counting: Callable[[], contextlib.AbstractContextManager[dict[int, int]]] | None = None
        self._kept_bytes: list[int] = []
        for layer, block in blocks:
            self._wrap(layer, block, again)

    @property
    def in_one(self) -> bool:
        """Whether a backward pass may not be split in two parts.

        Each part would compute a block again, and the second one does for each of its operators. The backward pass of a
        compiled block is one operator.
        """
        return self.on or self.compiled

    @contextlib.contextmanager
    def compiling(self, compiler: Callable[[Forward], Forward]) -> Iterator[None]:
        """Compute the blocks with what the compiler makes of their functions; as before if this raises an exception."""
        before = self._forwards
        self._forwards, self.compiled = {layer: compiler(forward) for layer, forward in before.items()}, True
        try:
            yield
        except BaseException:
            self._forwards, self.compiled = before, False
            raise

    @contextlib.contextmanager
    def counted(self, counting: Callable[[], contextlib.AbstractContextManager[dict[int, int]]]) -> Iterator[list[int]]:
        """Count the bytes that each block keeps in the forward pass within, after which no backward pass may follow.

        counting: begins to note what autograd saves, address -> bytes.
        """
        self._counting, self._kept_bytes = counting, []
        try:
            yield self._kept_bytes
        finally:
            self._counting = None

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
        self._forwards[layer] = block.forward

        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            forward = self._forwards[layer]
            if self._counting is not None:
                with self._counting() as sizes:
                    found = forward(*args, **kwargs)
                self._kept_bytes.append(sum(sizes.values()))
                return found
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
