"""What a sender knows of its links: smoothed, without its own queue, and renewed where it is old or was a guess."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.link_estimates import AGED_S, LinkEstimates
from tests.core.samples import process

A, B = process("a"), process("b")
BYTES = 1000


def transferred(links: LinkEstimates, seconds: float, now: float, direct: bool = True) -> None:
    links.record_transfer(A, BYTES, seconds, now, direct)


def test_of_an_unknown_process_nothing_is_known() -> None:
    links = LinkEstimates()
    assert (links.transfer_s(A), links.link_s(A), links.response_s(A), links.service_s(A), links.rate(A)) == (None,) * 5
    assert (links.used_s(A), links.any_response_s, links.is_fresh(A)) == (None, None, False)


def test_times_are_smoothed_by_a_tenth() -> None:
    links = LinkEstimates()
    transferred(links, 2.0, 10.0)
    transferred(links, 3.0, 20.0)
    assert links.transfer_s(A) == pytest.approx(2.1)
    assert links.rate(A) == pytest.approx(BYTES / 2.1)
    assert links.used_s(A) == 20.0
    links.record_service(A, 6.0, 21.0)
    links.record_response(A, 8.0, 21.0)
    links.record_response(A, 9.0, 22.0)
    assert links.response_s(A) == pytest.approx(8.1)
    assert links.service_s(A) == 6.0
    links.record_response(B, 18.1, 22.0)
    assert links.any_response_s == pytest.approx(9.1)


def test_a_tensor_in_a_queue_takes_from_when_the_one_before_it_was_there() -> None:
    links = LinkEstimates()
    transferred(links, 2.0, 10.0)
    transferred(links, 4.0, 12.0)  # sent at 8, as the first one
    assert links.link_s(A) == pytest.approx(2.0)
    assert links.transfer_s(A) == pytest.approx(2.0)


def test_what_a_tensor_waits_for_others_from_here_says_nothing_of_its_receiver() -> None:
    """One uplink, 2 s a tensor, three sent at once to three receivers; then paths that share nothing."""
    links, peers = LinkEstimates(), [process(f"p{number}") for number in range(3)]
    for number, peer in enumerate(peers):
        links.record_transfer(peer, BYTES, 2.0 + 2.0 * number, 2.0 + 2.0 * number, direct=True)
    assert [links.transfer_s(peer) for peer in peers] == [2.0] * 3
    assert [links.link_s(peer) for peer in peers] == pytest.approx([2.0] * 3)
    assert links.has_uplink
    apart = LinkEstimates()
    for peer in peers:
        apart.record_transfer(peer, BYTES, 6.0, 6.0, direct=True)
    assert [apart.transfer_s(peer) for peer in peers] == [6.0] * 3
    assert not apart.has_uplink


def shared_evenly(peers: list[ProcessId], tensors: int) -> Iterator[tuple[ProcessId, float, float]]:
    """One uplink that divides itself among the streams to some peers, a tensor to each: receiver, sent, arrived.

    A tensor that has the uplink for itself takes a second; their sizes differ a little, so that they do not keep step.
    """
    random, now_s = Random(0), 0.0
    left_s = {peer: random.uniform(0.8, 1.2) for peer in peers}
    sent_s = dict.fromkeys(peers, 0.0)
    for _ in range(tensors):
        first = min(left_s, key=lambda peer: left_s[peer])
        took_s = left_s[first]
        now_s += took_s * len(peers)
        left_s = {peer: seconds - took_s for peer, seconds in left_s.items()}
        yield first, sent_s[first], now_s
        left_s[first], sent_s[first] = random.uniform(0.8, 1.2), now_s


def test_streams_that_share_an_uplink_evenly_say_nothing_of_their_receivers_either() -> None:
    """Three tensors are on their way at a time, and each takes three seconds, two of them for the others."""
    links, peers = LinkEstimates(), [process(f"p{number}") for number in range(3)]
    for peer, sent_s, arrived_s in shared_evenly(peers, 60):
        assert 2.4 < arrived_s - sent_s < 3.6
        links.record_transfer(peer, BYTES, arrived_s - sent_s, arrived_s, direct=True)
    assert all(1.0 <= (links.transfer_s(peer) or 0.0) < 2.0 for peer in peers)


def test_who_is_slow_is_slow_whatever_waits_before() -> None:
    links = LinkEstimates()
    links.record_transfer(A, BYTES, 2.0, 2.0, direct=True)
    links.record_transfer(A, BYTES, 4.0, 4.0, direct=True)
    links.record_transfer(B, BYTES, 16.0, 16.0, direct=True)  # sent at 0 too: 4 s of that behind the two others
    assert links.transfer_s(B) == pytest.approx(12.0)


def test_a_probe_is_believed_until_a_tensor_is_sent() -> None:
    links = LinkEstimates()
    links.record_probe(A, BYTES, 5.0, 0.0)
    assert (links.transfer_s(A), links.is_fresh(A)) == (5.0, True)
    assert links.rate(A) == pytest.approx(BYTES / 5.0)
    transferred(links, 3.0, 9.0)
    links.record_probe(A, BYTES, 5.0, 10.0)
    assert links.transfer_s(A) == 3.0


def test_on_another_path_a_tensor_takes_another_time_and_the_direct_link_stays_as_it_was() -> None:
    links = LinkEstimates()
    transferred(links, 3.0, 9.0)
    links.record_path(A, 1.0)
    assert links.transfer_s(A) == 1.0
    transferred(links, 2.0, 20.0, direct=False)
    assert links.transfer_s(A) == 2.0
    assert links.rate(A) == pytest.approx(BYTES / 3.0)


def test_an_old_estimate_counts_until_it_is_measured_or_probed_again() -> None:
    links = LinkEstimates()
    transferred(links, 3.0, 0.0)
    links.record_transfer(B, BYTES, 3.0, AGED_S + 1.0, direct=True)
    assert (links.transfer_s(A), links.is_fresh(A)) == (3.0, False)
    links.record_probe(A, BYTES, 5.0, AGED_S + 2.0)
    assert links.transfer_s(A) == 5.0
    transferred(links, 7.0, 2 * AGED_S)
    assert links.transfer_s(A) == 7.0
    transferred(links, 8.0, 4 * AGED_S)
    assert links.transfer_s(A) == 8.0


def test_what_is_due_for_renewal_is_replaced() -> None:
    links = LinkEstimates()
    transferred(links, 3.0, 0.0)
    links.record_service(A, 6.0, 1.0)
    links.renew(A)
    transferred(links, 1.0, 20.0)
    links.record_service(A, 3.0, 21.0)
    assert (links.transfer_s(A), links.service_s(A)) == (1.0, 3.0)
    links.renew(B)
    assert links.transfer_s(B) is None


def test_what_a_peer_says_of_its_passes_counts_unless_they_took_ten_times_as_long() -> None:
    links = LinkEstimates()
    links.record_service(A, 0.0, 1.0)
    assert links.service_s(A) is None, "it has computed none"
    links.record_service(A, 2.0, 2.0)
    links.record_pass(A, 170.0, 3.0)
    assert links.service_s(A) == 2.0
    links.record_pass(A, 60.0, 4.0)
    assert links.service_s(A) == pytest.approx(22.92), "of 2, 170 and 60 s"
    links.record_service(A, 2.0, 5.0)
    assert links.service_s(A) == pytest.approx(22.92), "to say it again makes it no truer"


@pytest.mark.parametrize("before", ["nothing", "passes", "long ago", "renewed", "a pass of which it told nothing"])
def test_a_single_slow_pass_of_a_peer_is_no_proof_against_what_it_says(before: str) -> None:
    links, now = LinkEstimates(), 2.0
    if before == "a pass of which it told nothing":
        links.record_pass(A, 50.0, 0.5)
    links.record_service(A, 2.0, 1.0)
    if before in ("passes", "long ago", "renewed"):
        links.record_pass(A, 2.0, now)
    if before == "renewed":
        links.renew(A)
    now += 2 * AGED_S if before == "long ago" else 1.0
    links.record_pass(A, 50.0, now)
    assert links.service_s(A) == 2.0, "it had put something off, which came before this pass"
    links.record_pass(A, 500.0, now + 1.0)
    assert links.service_s(A) == pytest.approx(56.12)


def test_what_passes_took_counts_where_the_peer_says_nothing() -> None:
    links = LinkEstimates()
    links.record_pass(A, 3.0, 1.0)
    assert links.service_s(A) == 3.0
    links.record_service(A, 2.0, 2.0)
    assert links.service_s(A) == 2.0


def test_what_takes_no_time_or_has_no_bytes_says_nothing_of_a_rate() -> None:
    links = LinkEstimates()
    transferred(links, 0.0, 1.0)
    links.record_transfer(A, 0, 1.0, 9.0, direct=True)
    links.record_probe(A, BYTES, 0.0, 10.0)
    assert links.rate(A) is None


def test_who_is_not_kept_is_forgotten() -> None:
    links = LinkEstimates()
    for to in (A, B):
        links.record_transfer(to, BYTES, 2.0, 1.0, direct=True)
        links.record_response(to, 3.0, 2.0)
    links.keep(frozenset((B,)))
    assert (links.transfer_s(A), links.rate(A), links.response_s(A), links.used_s(A)) == (None,) * 4
    assert (links.transfer_s(B), links.response_s(B)) == (2.0, 3.0)
