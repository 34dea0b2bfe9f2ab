"""Python's garbage collector: among the millions of objects of a world, which stay alive, it finds little."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

# New objects before a collection; collections before one of the second generation, and of the third. 10,000 peers have
# half a million objects in flight, none of them garbage: these should not lead to a collection each second.
COLLECT = (2_000_000, 10, 100)


@contextlib.contextmanager
def searched_rarely() -> Iterator[None]:
    """Within the block, exclude all present objects from collections, and collect new ones rarely.

    Where the caller has frozen objects already, it has chosen what is excluded: `gc.unfreeze` would undo that.
    """
    before, chosen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.collect()
    if not chosen:
        gc.freeze()
    gc.set_threshold(*COLLECT)
    try:
        yield
    finally:
        if not chosen:
            gc.freeze()  # else all new objects would be collected now
        gc.set_threshold(*before)
        if not chosen:
            gc.unfreeze()
