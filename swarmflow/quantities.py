"""Sizes and rates as users write them: 8GB, 20Mbit/s."""

from __future__ import annotations

import re

from swarmflow.errors import ConfigError

_POWERS = "kmgt"
_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?) ?([kmgt]?)(i?)(b?)", re.IGNORECASE)
_RATE = re.compile(r"(\d{1,15}(?:\.\d+)?) ?([kmgt]?)(i?)(bit/s|bps|b/s)", re.IGNORECASE)
_BITS = ("bit/s", "bps")
UPLOAD_MIN_BYTES_PER_S = 125_000  # slower, four chunks of a state take a minute, after which their receiver gives up


def parse_size(option: str, text: str) -> int:
    """Return a size in bytes: `8GB` (10^9), `512MiB` (2^20), `8G`. Raises ConfigError, which names the option."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or not (found[2] or found[4]) or (found[3] and not found[2]):
        raise ConfigError(f"{option} {text}: write a size such as 8GB or 512MiB")
    if found[4] == "b" and found[2].isupper():
        right = f"{found[1]}{found[2]}{found[3]}B"
        raise ConfigError(f"{option} {text}: a lower-case b stands for bits; write {right} for bytes")
    size_bytes = round(float(found[1]) * _factor(found[2], found[3]))
    if size_bytes < 1:
        raise ConfigError(f"{option} {text}: must be more than 0")
    return size_bytes


def parse_upload(option: str, text: str) -> float:
    """Return a rate in bytes/s: `20Mbit/s`, `20Mbps` or `2.5MB/s`. Raises ConfigError, which names the option."""
    found = _RATE.fullmatch(text.strip())
    if found is None or (found[3] and not found[2]):
        raise ConfigError(f"{option} {text}: write a rate such as 20Mbit/s or 2.5MB/s")
    number, prefix, unit = found[1], found[2] + found[3], found[4]
    if unit.endswith("Bps") or unit == "BPS":
        raise ConfigError(f"{option} {text}: write {number}{prefix}B/s for bytes, {number}{prefix}bit/s for bits")
    if unit == "b/s":
        raise ConfigError(f"{option} {text}: bits or bytes? write {number}{prefix}bit/s or {number}{prefix}B/s")
    rate = float(number) * _factor(found[2], found[3]) / (8 if unit.lower() in _BITS else 1)
    if rate < UPLOAD_MIN_BYTES_PER_S:
        raise ConfigError(f"{option} {text}: a peer needs at least 1Mbit/s to be of use")
    return rate


def _factor(prefix: str, binary: str) -> int:
    power = _POWERS.index(prefix.lower()) + 1 if prefix else 0
    return int((1024 if binary else 1000) ** power)
