"""What background messages get of a link that others always fill."""

from __future__ import annotations

import pytest

from swarmflow.core.routing.background_share import (
    COPIES_SHARE,
    DOUBLES_S,
    PAUSE_S,
    SHARE_FIRST,
    SHARE_MAX,
    BackgroundShare,
)

TICK_S = 0.1


def filled(share: BackgroundShare, begin_s: float, end_s: float, idle: float = 0.0) -> float:
    """The part of the link that the background is given beside others that fill the rest; idle: what they leave."""
    sent, tick = 0.0, 0
    while (now := begin_s + tick * TICK_S) < end_s:
        tick += 1
        share.load(0.0, now)
        given = max(share.due(now), idle * TICK_S)
        share.sent(given, now)
        share.yielded(TICK_S - given, now)
        sent += given
    return sent / (tick * TICK_S)


def test_the_share_doubles_every_few_minutes_up_to_half_of_the_link() -> None:
    share = BackgroundShare()
    first, second = filled(share, 0.0, DOUBLES_S), filled(share, DOUBLES_S, 2 * DOUBLES_S)
    assert SHARE_FIRST < first < 2 * SHARE_FIRST < second < 6 * SHARE_FIRST
    filled(share, 2 * DOUBLES_S, 10 * DOUBLES_S)
    assert filled(share, 10 * DOUBLES_S, 11 * DOUBLES_S) == pytest.approx(SHARE_MAX, rel=0.05)


def test_what_others_leave_idle_counts_as_the_share() -> None:
    share = BackgroundShare()
    assert filled(share, 0.0, DOUBLES_S, idle=0.1) == pytest.approx(0.1)
    share.load(0.0, DOUBLES_S)
    share.yielded(1.0, DOUBLES_S)
    assert share.due(DOUBLES_S) < 0.0


def test_after_a_pause_it_begins_at_the_first_share() -> None:
    share = BackgroundShare()
    filled(share, 0.0, 10 * DOUBLES_S)
    again_s = 10 * DOUBLES_S + 2 * PAUSE_S
    assert filled(share, again_s, again_s + DOUBLES_S / 10) < 1.2 * SHARE_FIRST


def test_copies_have_their_share_however_long_they_take() -> None:
    share = BackgroundShare()
    sent = 0.0
    for tick in range(20_000):
        now = tick * TICK_S
        given = max(share.due(now), 0.0)
        share.sent(given, now)
        share.yielded(TICK_S - given, now)
        sent += given
    assert sent / (20_000 * TICK_S) == pytest.approx(COPIES_SHARE, rel=0.05)


def test_a_larger_share_counts_from_now_on_and_not_for_what_others_have_sent() -> None:
    share = BackgroundShare()
    share.load(0.0, 0.0)
    share.yielded(30.0, 0.0)
    share.load(0.75, 0.0)
    assert share.due(0.0) == pytest.approx(0.0)
    share.yielded(1.0, 0.0)
    assert share.due(0.0) == pytest.approx(0.75)
