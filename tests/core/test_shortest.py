"""The router of the shortest expected delay: fast ways first, the way beyond included, and work shared out."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.core.protocol.messages import DownstreamCost
from swarmflow.core.protocol.messages.checks import SECONDS_MAX, MessageChecks
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.compute_timer import UNKNOWN_S
from swarmflow.core.routing.shortest import PRIOR_S, RETRY_FACTOR, STALE_FACTOR, Shortest, _PeerQueue
from tests.core.measuring import on_path, probed, responded, transferred
from tests.core.samples import EPOCH, process

A, B, C = process("a"), process("b"), process("c")


def router(**tensor_s: float) -> Shortest:
    """Peers to which a tensor was measured to take so long."""
    made = Shortest()
    made.begin_epoch(process(name) for name in tensor_s)
    for name, seconds in tensor_s.items():
        transferred(made, process(name), seconds)
    return made


def chosen(made: Shortest, *exclude: ProcessId) -> ProcessId | None:
    choice = made.choose(exclude)
    return None if choice is None else choice.process


def test_the_fastest_way_is_taken_until_as_many_are_on_it_as_make_it_slow() -> None:
    made = router(a=1.0, b=2.5)
    sent: Counter[ProcessId] = Counter()
    for _ in range(7):
        to = chosen(made)
        assert to is not None
        sent[to] += 1
        made.set_pending(to, sent[to])
    assert sent == {A: 6, B: 1}, "with 4 on it the way to a takes 6 s, the one to b 5 s, and with one on that 7.5 s"


def test_a_fast_link_to_a_peer_with_slow_ones_beyond_is_no_fast_way() -> None:
    made = router(a=1.0, b=2.0)
    made.record_downstream(A, 30.0)
    made.record_downstream(B, 4.0)
    assert chosen(made) == B
    assert made.downstream_s == 2 * 2.0 + 4.0, "forth and back, and what it said; its passes are not known"
    made.record_downstream(A, 1.0)
    assert chosen(made) == A


def test_no_peer_makes_another_one_announce_more_than_the_stage_before_accepts() -> None:
    made = router(a=1.0)
    responded(made, A, 9.0, 8.0)
    made.record_downstream(A, SECONDS_MAX)
    assert MessageChecks(2, 1).wrong(DownstreamCost(EPOCH, made.downstream_s)) is None


def test_what_a_peer_takes_to_compute_counts_as_well() -> None:
    made = router(a=1.0, b=1.0)
    responded(made, A, 9.0, 8.0)
    assert chosen(made) == B
    responded(made, B, 21.0, 20.0)
    assert chosen(made) == A
    responded(made, A, 21.0)
    assert chosen(made) == A, "the time within is not known here"


def test_of_two_that_are_as_near_the_one_with_less_to_compute_is_first() -> None:
    """As each has told when it last took a microbatch; what it has computed since is gone."""
    made = router(a=1.0, b=1.0)
    made.links.record_work(A, 9.0, 1.0, 10.0)
    made.links.record_work(B, 5.0, 1.0, 10.0)
    transferred(made, A, 1.0, 12.0)
    assert {chosen(made) for _ in range(9)} == {B}
    assert [made.links.work_s(process) for process in (A, B)] == [7.0, 3.0]
    made.links.record_work(B, 8.0, 1.0, 12.0)
    assert {chosen(made) for _ in range(9)} == {A}
    transferred(made, A, 1.0, 30.0)
    assert {chosen(made) for _ in range(30)} == {A, B}, "both have had the time for all of it"


def test_a_way_that_is_longer_by_less_than_a_microbatch_takes_is_as_near() -> None:
    """Both its passes count: else who is a little farther away would compute nothing while others have much to do."""
    made = router(a=1.0, b=2.5)
    made.links.record_work(A, 10.0, 1.0, 1.0)
    assert {chosen(made) for _ in range(9)} == {A}, "b is 3 s farther away, forth and back, and a microbatch takes 1 s"
    made.links.record_work(A, 10.0, 4.0, 1.0)
    assert {chosen(made) for _ in range(9)} == {B}, "it takes 4 s, and b has nothing to do"


def test_of_several_that_are_as_near_those_with_the_least_to_compute_are_the_choice() -> None:
    """Work that was told is done as time passes: who told long ago has little left."""
    names = [f"p{number}" for number in range(6)]
    made = router(**dict.fromkeys(names, 1.0))
    for number, name in enumerate(names):
        made.links.record_work(process(name), 10.0 + number, 1.0, 1.0)
    made.links.record_work(process("p5"), 8.5, 1.0, 4.0)
    choices = {(choice.process, choice.alternatives[:1]) for _ in range(20) if (choice := made.choose())}
    assert choices == {(process("p0"), (process("p1"),))}, "p5 told 8.5 s now; of the others' 3 s are done"


def test_of_very_many_peers_the_choice_is_of_some_that_are_drawn() -> None:
    """If all senders asked the one that is told to have the least work, it would have the most a moment later."""
    names = [f"p{number}" for number in range(40)]
    made = router(**dict.fromkeys(names, 1.0))
    for number, name in enumerate(names):
        made.links.record_work(process(name), 10.0 + number, 1.0, 1.0)
    found = Counter(choice.process for _ in range(400) if (choice := made.choose()))
    assert len(found) > 10
    assert sum(found[process(name)] for name in names[:10]) > 300, "a quarter of the peers, with the least work"


def test_a_probe_is_believed_until_something_was_sent() -> None:
    made = Shortest()
    made.begin_epoch((A, B))
    assert not made.links.is_fresh(A)
    probed(made, A, 5.0)
    probed(made, B, 1.0)
    assert (chosen(made), made.links.is_fresh(B)) == (B, True)
    transferred(made, B, 9.0)
    probed(made, B, 1.0)
    assert chosen(made) == A, "what was sent says more than a probe"


@pytest.mark.parametrize("ahead", [False, True])
def test_who_was_slow_once_is_tried_again_with_one_microbatch_and_measured_anew(ahead: bool) -> None:
    made = router(a=0.1, b=0.1)
    transferred(made, B, 20.0)  # busy with something else at that moment
    responded(made, B, 25.0, 0.1)
    used_s, waits_s = made.links.now_s, RETRY_FACTOR * (made.delay_s(B) or 0.0)

    def opened(after_s: float) -> list[ProcessId | None]:
        """The first three choices of a step that is opened so long after that."""
        transferred(made, A, 0.1, used_s + after_s)
        if ahead:
            for peer in (A, B):
                made.set_pending(peer, 0)
            made.go_on()
        else:
            made.begin_epoch((A, B))
        sent: Counter[ProcessId | None] = Counter()
        for _ in range(3):
            to = chosen(made)
            assert to is not None
            sent[to] += 1
            made.set_pending(to, sent[to])
        return sorted(sent.elements(), key=str)

    assert opened(0.9 * waits_s) == [A, A, A]
    assert opened(1.1 * waits_s) == [A, A, B], "one alone: it may be as slow as it was"
    transferred(made, B, 0.1, used_s + 1.1 * waits_s)
    responded(made, B, 0.2, 0.1)
    assert opened(1.2 * waits_s).count(B) > 0, "what it takes now replaces what was known"


def test_who_is_slow_still_costs_a_small_part_of_the_time() -> None:
    made = router(a=0.1, b=0.1)
    transferred(made, B, 50.0)
    responded(made, B, 60.0, 10.0)
    tried, began_s = 0, made.links.now_s
    while (now := made.links.now_s + 1.0) < began_s + 10_000.0:
        transferred(made, A, 0.1, now)
        made.begin_epoch((A, B))
        if chosen(made, A) == B and chosen(made) == B:
            made.set_pending(B, 1)
            assert chosen(made) == A
            transferred(made, B, 10.0, now)
            made.set_pending(B, 0)
            responded(made, B, 15.0, 5.0)
            tried += now > began_s + 100.0  # until then it is found out how slow it is
    assert 25.0 < (tried - 1) * 25.0 < 10_000.0 / RETRY_FACTOR, "between two trials go so many times what one takes"


def test_a_stranger_counts_as_the_mean_of_those_that_are_known() -> None:
    made = router(a=1.0, b=5.0)
    made.begin_epoch((A, B, C))
    assert chosen(made, A) == C
    assert not made.links.is_fresh(C)


def test_what_is_usual_of_a_peer_that_was_only_probed_follows_from_one_step_to_the_next() -> None:
    made = router(a=1.0, b=1.0)
    made.begin_epoch((A, B, C))
    probed(made, C, 1.0)
    responded(made, A, 9.0, 8.0)
    slow_s = made.delay_s(C)
    made.begin_epoch((A, B, C))
    for _ in range(50):
        responded(made, A, 1.0, 0.1)
    assert slow_s is not None
    assert made.delay_s(C) == pytest.approx(2 * 1.0 + 0.1, rel=0.2)
    assert slow_s > 9.0


def test_who_is_banned_comes_back_when_it_is_announced() -> None:
    made = router(a=1.0, b=2.0)
    made.remove_peer(A)
    assert chosen(made) == B
    assert chosen(made, B) is None
    made.begin_epoch((A, B))
    assert chosen(made) in (A, B)


def test_a_peer_that_was_removed_and_joins_again_keeps_what_was_measured_of_it() -> None:
    made = router(a=1.0, b=20.0, c=2.0)
    made.remove_peer(B)
    made.begin_epoch((A, C))
    made.begin_epoch((A, B, C))
    assert made.delay_s(B) == 2 * 20.0 + UNKNOWN_S
    made.remove_peer(B)
    made.add_peer(B)
    assert made.delay_s(B) == 2 * 20.0 + UNKNOWN_S, "within a step as well"


def test_of_equal_peers_the_senders_prefer_different_ones() -> None:
    peers = [process(f"p{number:02}") for number in range(16)]
    first: Counter[ProcessId | None] = Counter()
    for number in range(160):
        made = Shortest(f"sender {number}")
        made.begin_epoch(peers)
        first[chosen(made)] += 1
    assert len(first) > 8, "not all of them the same few"
    assert max(first.values()) < 40


@settings(max_examples=60)
@given(st.data())
def test_the_choice_is_nearly_the_least_of_all(data: st.DataObject) -> None:
    """Against the plain minimum: what is out of date in the heap is never chosen."""
    peers = [process(f"p{number}") for number in range(data.draw(st.integers(1, 5)))]
    made = Shortest()
    made.begin_epoch(peers)
    for _ in range(data.draw(st.integers(0, 30))):
        peer, number = data.draw(st.sampled_from(peers)), data.draw(st.integers(0, 9))
        match data.draw(st.sampled_from(("arrived", "awaits", "told", "measured", "probed"))):
            case "arrived":
                transferred(made, peer, float(number))
            case "awaits":
                made.set_pending(peer, number)
            case "told":
                made.record_downstream(peer, float(number))
            case "measured":
                responded(made, peer, 0.0, float(number))
            case "probed":
                probed(made, peer, float(number))
        out = set(data.draw(st.lists(st.sampled_from(peers), max_size=4)))
        seen = {other: made._estimate(other) for other in peers}
        left = [other for other in peers if other not in out]
        choice = made.choose(out)
        assert (choice is None) == (not left)
        if choice is not None:
            least = min((seen[other] for other in left), key=lambda peer: peer.delay_s)
            near_s = least.delay_s + max(least.tensor_s, least.service_s)
            assert seen[choice.process].delay_s <= near_s
            assert all(each in left and seen[each].delay_s <= near_s for each in choice.alternatives)
            assert choice.process not in choice.alternatives
        passes_s = made._typical.service_s
        known = passes_s != UNKNOWN_S or made._typical.tensor_s != PRIOR_S
        links_s = min(peer.path_s for peer in seen.values()) - (UNKNOWN_S if passes_s == UNKNOWN_S else 0.0)
        assert made.downstream_s == (max(0.0, links_s) if known else 0.0)


def test_a_stranger_with_another_way_is_known_from_then_on() -> None:
    made = Shortest()
    made.begin_epoch((A, B))
    probed(made, A, 5.0)
    on_path(made, B, 1.0)
    assert (chosen(made), made.links.is_fresh(B)) == (B, True)


def test_who_holds_something_when_the_next_step_goes_on_keeps_it_and_is_not_tried() -> None:
    made = router(a=0.1, b=0.1)
    transferred(made, B, 20.0)
    made.set_pending(B, 1)
    delay_s = made.delay_s(B)
    transferred(made, A, 0.1, 1e6)
    made.go_on()
    assert made.delay_s(B) == delay_s


def test_a_value_that_changes_above_the_least_one_leaves_few_entries_behind() -> None:
    queue = _PeerQueue()
    one, other = process("one"), process("other")
    queue.put(other, 0.0)
    for turn in range(1000):
        queue.put(one, 2000.0 - turn)
        assert queue.first() == other
    assert len(queue.heap) <= 2 * STALE_FACTOR


def test_an_excluded_peer_whose_delay_changes_to_and_fro_leaves_no_entries_behind() -> None:
    queue = _PeerQueue()
    one, other = process("one"), process("other")
    queue.put(other, 1.0)
    for turn in range(200):
        queue.put(one, 2.0 + turn % 2)
    assert queue.first({one, other}) is None
    assert len(queue.heap) == 2  # before, all entries with the present delay were put back, each time
    assert (queue.first(), queue.first({other})) == (other, one)
