"""Adaptive compression: the slowest boundary is compressed as asked, the others by less."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.compute.topk import codec_of
from swarmflow.core.commit.adaptive_compression import boundary_rates, kept_numbers
from swarmflow.core.protocol.messages import LinkRateReport
from swarmflow.core.protocol.types import Member, ProcessId, Roster
from swarmflow.core.routing.link_rates import LinkTable


@pytest.mark.parametrize(
    ("rates", "kept"),
    [
        ((1e6, 1e6), (10, 10)),
        ((1e6, 2e6, 1e7, 1e9), (10, 20, 101, 256)),  # 1/5 of fp32: 204.8 bytes; the last one is faster than 8 bits need
        ((0.0, 1e6, 5e6), (10, 10, 50)),  # not measured: as slow as the slowest
        ((0.0, 0.0), (10, 10)),
        ((), ()),
    ],
)
def test_a_boundary_is_compressed_by_less_the_faster_its_links_are(
    rates: tuple[float, ...], kept: tuple[int, ...]
) -> None:
    assert kept_numbers(rates, 50.0) == kept


@given(st.lists(st.floats(1.0, 1e12), min_size=1, max_size=8), st.floats(1.0, 400.0))
def test_no_tensor_takes_more_bytes_than_its_ratio_allows(rates: list[float], ratio: float) -> None:
    """At most 1/r_i of fp32, but for the header and the scale that is not shared by 256: or all in 8 bits."""
    shape, slowest = (4, 64, 256), min(rates)
    plain_bytes = 4 * 4 * 64 * 256
    for rate, kept in zip(rates, kept_numbers(rates, ratio), strict=True):
        wire_bytes = codec_of("adatopk", kept).wire_bytes(shape, torch.float32)
        allowed = max(1.0, ratio * slowest / rate)
        assert wire_bytes <= max(plain_bytes / allowed, 256 * 2.016) + 64


def test_microbatches_take_the_fastest_links_across_a_boundary() -> None:
    """Two regions: across the boundary each peer has a fast link and a slow one, and the slow ones are not used."""
    a, b, c, d = (ProcessId(name, 0) for name in "abcd")
    roster = Roster(((Member(a, 0), Member(b, 0)), (Member(c, 1), Member(d, 1)), (Member(ProcessId("e", 0), 2),)))
    links = LinkTable()
    links.learn(a, 0, LinkRateReport((), ((c, 8e6), (d, 1e6))))
    links.learn(b, 0, LinkRateReport((), ((c, 1e6), (d, 5e6))))
    assert boundary_rates(roster, links) == (5e6, 0.0)
