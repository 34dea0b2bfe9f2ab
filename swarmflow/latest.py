"""Entries of which the latest are kept: whoever comes back under ever other names fills no memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
ENTRIES_MAX = 4096  # where nothing else is said


class Latest(OrderedDict[Key, Value]):
    """The entries that were set last, at most so many of them."""

    def __init__(self, entries_max: int | None = None) -> None:
        """entries_max: ENTRIES_MAX if not given."""
        super().__init__()
        self._entries_max = ENTRIES_MAX if entries_max is None else entries_max

    def __setitem__(self, key: Key, value: Value) -> None:
        """Set an entry, which is the latest one then."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._entries_max:
            self.popitem(last=False)
