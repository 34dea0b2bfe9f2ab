"""Python's search for garbage: among the millions of objects of a world, which live on, it is mostly in vain."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

# New objects before a search; searches before one of the second kind, and of the third. What 10,000 peers have in
# flight at a time are half a million objects, none of them garbage: they should not lead to a search each second.
COLLECT = (2_000_000, 10, 100)


@contextlib.contextmanager
def searched_rarely() -> Iterator[None]:
    """While this lasts, what was there before is not looked at, and what is new seldom."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT)
    try:
        yield
    finally:
        gc.freeze()  # else all that came since would be looked at now
        gc.set_threshold(*before)
        gc.unfreeze()
