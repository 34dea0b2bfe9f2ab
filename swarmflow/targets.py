"""The targets of a loss."""

from __future__ import annotations

from typing import Final

IGNORED: Final = -100  # a target that does not count, as in torch's cross-entropy and in transformers
