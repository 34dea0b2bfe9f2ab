"""The map of links: the better of two measurements counts, both directions tell of one, and unknown ones are usual."""

from __future__ import annotations

from swarmflow.core.protocol.messages.checks import FASTEST
from swarmflow.core.routing.link_map import CHANGED, LATENCY_S, LinkMap
from tests.core.samples import process

A, B, C = (process(name) for name in "abc")


def test_of_two_measurements_of_a_link_the_better_counts_and_older_ones_do_not() -> None:
    links = LinkMap()
    for latency_s, rate in ((0.01, 9e6), (0.03, 4e6), (0.02, 5e6)):
        links.learn(A, [(B, latency_s, rate)])
    assert links.tables((A, B)) == ([[0.02, 0.02], [0.02, 0.02]], [[5e6, 5e6], [5e6, 5e6]])


def test_a_link_is_as_its_own_end_says_else_as_the_other_says_and_else_as_the_median_one() -> None:
    links = LinkMap()
    links.learn(A, [(B, 0.01, 1e6)])
    links.learn(B, [(A, 0.02, 2e6), (process("gone"), 9.0, 1.0)])
    latency_s, rates = links.tables((A, B, C))
    assert (rates[0][1], rates[1][0]) == (1e6, 2e6)
    assert rates[2] == [1.5e6] * 3
    assert latency_s[0][2] == 0.015
    assert LinkMap().tables((A, B))[1] == [[FASTEST] * 2] * 2
    links.learn(C, [(A, 0.5, 7e6)])
    assert links.tables((A, B, C))[1][0][2] == 7e6, "as the other end says"


def test_it_tells_what_is_new_or_has_changed_by_much() -> None:
    links = LinkMap()
    assert links.learn(A, [(B, 0.01, 1e6)]), "it was not known"
    assert not links.learn(A, [(B, 0.02, 0.1e6)]), "other traffic may have slowed it down this time"
    assert links.learn(A, [(B, 0.02, 0.1e6)]), "and not twice"
    assert not links.learn(A, [(B, 0.02, 0.1e6 * (1 + CHANGED))])
    assert not links.learn(A, [(B, 0.02 - LATENCY_S, 0.1e6)])
    assert links.learn(A, [(B, 0.002, 0.1e6)])
    assert not links.learn(B, [(A, 0.002, 0.1e6 * (1 + CHANGED))]), "the other end says the same"


def test_it_suffices_when_links_of_nearly_all_are_known_by_either_end() -> None:
    peers = [process(f"p{number:02}") for number in range(20)]
    links = LinkMap()
    assert not links.suffices(peers)
    links.learn(peers[0], [(peer, 0.01, 1e6) for peer in peers[1:17]])
    assert not links.suffices(peers), "three of twenty have none"
    links.learn(peers[17], [(peers[0], 0.01, 1e6)])
    assert links.suffices(peers)
    links.forget([peers[0], process("unknown")])
    assert not links.suffices(peers)
    assert links.peers == [peers[17]]
