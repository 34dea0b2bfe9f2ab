"""Entries of which the latest are kept: whoever comes back under ever other names fills no memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
ENTRIES_MAX = 4096


class Latest(OrderedDict[Key, Value]):
    """The entries that were set last, at most ENTRIES_MAX of them."""

    def __setitem__(self, key: Key, value: Value) -> None:
        """Set an entry, which is the latest one then."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > ENTRIES_MAX:
            self.popitem(last=False)
