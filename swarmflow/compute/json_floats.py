"""Floats that JSON has no number for, written as transformers writes them: `{"__float__": "Infinity"}`."""

from __future__ import annotations

import math
from typing import Any

_KEY = "__float__"


def as_json(value: Any) -> Any:  # noqa: ANN401  # whatever a configuration holds
    """Return a value with each float that is not finite written out."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_KEY: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, dict):
        return {key: as_json(each) for key, each in value.items()}
    return [as_json(each) for each in value] if isinstance(value, list | tuple) else value


def from_json(value: Any) -> Any:  # noqa: ANN401
    """Return a value with the floats that `as_json` has written out. Raises ValueError for what is no float."""
    if isinstance(value, dict):
        if set(value) == {_KEY}:
            return float(value[_KEY])
        return {key: from_json(each) for key, each in value.items()}
    return [from_json(each) for each in value] if isinstance(value, list | tuple) else value
