"""The map of links: the better of two measurements counts, changes are told, and nothing is kept of who is gone."""

from __future__ import annotations

from swarmflow.core.protocol.types import MeasuredLink
from swarmflow.core.routing.link_map import CHANGED, LATENCY_S, LinkMap
from tests.core.samples import process

A, B, C = (process(name) for name in "abc")


def test_of_two_measurements_of_a_link_the_better_counts_and_older_ones_do_not() -> None:
    links = LinkMap()
    for latency_s, rate in ((0.01, 9e6), (0.03, 4e6), (0.02, 5e6)):
        links.learn(A, [(B, latency_s, rate)])
    assert links.between((A, B)) == [MeasuredLink(0, 1, 0.02, 5e6)]


def test_links_are_told_between_the_peers_that_are_asked_for() -> None:
    links = LinkMap()
    links.learn(A, [(B, 0.01, 1e6), (A, 0.0, 9e9)])
    links.learn(B, [(A, 0.02, 2e6), (C, 9.0, 1e3)])
    assert links.between((B, A)) == [MeasuredLink(0, 1, 0.02, 2e6), MeasuredLink(1, 0, 0.01, 1e6)]
    assert links.count == 3, "nobody has a link to itself"


def test_it_tells_what_is_new_or_has_changed_by_much() -> None:
    links = LinkMap()
    assert links.learn(A, [(B, 0.01, 1e6), (C, 0.01, 1e6)]) == 2, "they were not known"
    assert links.learn(A, [(B, 0.02, 0.1e6)]) == 0, "other traffic may have slowed it down this time"
    assert links.learn(A, [(B, 0.02, 0.1e6)]) == 1, "and not twice"
    assert links.learn(A, [(B, 0.02, 0.1e6 * (1 + CHANGED))]) == 0
    assert links.learn(A, [(B, 0.02 - LATENCY_S, 0.1e6)]) == 0
    assert links.learn(A, [(B, 0.002, 0.1e6)]) == 1
    assert links.learn(B, [(A, 0.002, 0.1e6 * (1 + CHANGED))]) == 0, "the other end says the same"


def test_who_has_measured_and_who_was_measured() -> None:
    peers = [process(f"p{number:02}") for number in range(20)]
    links = LinkMap()
    assert not links.touches(peers)
    links.learn(peers[0], [(peer, 0.01, 1e6) for peer in peers[1:17]])
    assert not links.touches(peers), "three of twenty have no link that is known"
    links.learn(peers[17], [(peers[0], 0.01, 1e6)])
    assert links.touches(peers)
    assert not links.covers(peers)
    for peer in peers[1:17]:
        links.learn(peer, [(peers[0], 0.01, 1e6)])
    assert links.covers(peers), "two of twenty have not measured theirs"


def test_nothing_is_kept_of_who_is_gone_at_either_end() -> None:
    links = LinkMap()
    links.learn(A, [(B, 0.01, 1e6), (C, 0.01, 1e6)])
    links.learn(B, [(A, 0.01, 1e6)])
    links.keep({A, C})
    assert (links.peers, links.count) == ([A], 1)
