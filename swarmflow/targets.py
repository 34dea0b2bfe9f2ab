"""The targets of a loss, and what travels beside them."""

from __future__ import annotations

from typing import Final

IGNORED: Final = -100  # a target that does not count, as in torch's cross-entropy and in transformers
EMPTY: Final = -1  # the position of a place that holds no token
