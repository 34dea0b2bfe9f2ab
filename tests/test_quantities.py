"""Sizes and rates as a user writes them: bits are never taken for bytes."""

from __future__ import annotations

import pytest

from swarmflow.errors import ConfigError
from swarmflow.quantities import parse_size, parse_upload


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("8GB", 8 * 10**9), ("512MiB", 512 << 20), ("8G", 8 * 10**9), ("1.5 gb", 1_500_000_000), (" 700B ", 700)],
)
def test_a_size_is_read(text: str, size_bytes: int) -> None:
    assert parse_size("--memory-limit", text) == size_bytes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("8", "write a size such as 8GB or 512MiB"),
        ("8 apples", "write a size"),
        ("-8GB", "write a size"),
        ("8iB", "write a size"),
        ("1e9B", "write a size"),
        ("", "write a size"),
        ("8Gb", "a lower-case b stands for bits; write 8GB for bytes"),
        ("0GB", "must be more than 0"),
        (f"{'9' * 400}GB", "write a size"),
    ],
)
def test_what_is_no_size_is_refused_with_one_that_is(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_size("--memory-limit", text)
    assert str(refused.value).startswith(f"--memory-limit {text}: ")
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("20Mbit/s", 2_500_000),
        ("20 mbps", 2_500_000),
        ("2.5MB/s", 2_500_000),
        ("1MiB/s", 1 << 20),
        ("1Gbit/s", 125_000_000),
        ("1000kbit/s", 125_000),
    ],
)
def test_a_rate_is_read(text: str, bytes_per_s: float) -> None:
    assert parse_upload("--upload-limit", text) == bytes_per_s


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("20", "write a rate such as 20Mbit/s or 2.5MB/s"),
        ("20Mbit", "write a rate"),
        ("20MB", "write a rate"),
        ("inf B/s", "write a rate"),
        ("20Mb/s", "bits or bytes? write 20Mbit/s or 20MB/s"),
        ("20MBps", "write 20MB/s for bytes, 20Mbit/s for bits"),
        ("999kbit/s", "at least 1Mbit/s"),
        ("0MB/s", "at least 1Mbit/s"),
        (f"{'9' * 400}MB/s", "write a rate"),
    ],
)
def test_what_is_no_rate_is_refused_with_one_that_is(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_upload("--upload-limit", text)
    assert str(refused.value).startswith(f"--upload-limit {text}: ")
    assert why in str(refused.value)
