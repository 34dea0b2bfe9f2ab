"""What msgspec raises where bytes of somebody else are not what they should be."""

from __future__ import annotations

from typing import Final

import msgspec

# Text that is not UTF-8 and what is nested too deeply are no DecodeError.
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
