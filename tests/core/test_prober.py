"""Probes: one peer after the other, what bytes take beyond the way there and back, and nobody waited for for ever."""

from __future__ import annotations

from collections import Counter

from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.messages import Probe, Probed
from swarmflow.core.protocol.types import Epoch, Padding, ProcessId
from swarmflow.core.routing.prober import AT_ONCE_MAX, PATIENCE_S, SHARE, ProbedLink, Prober
from tests.core.samples import EPOCH, messages, process

A, B = process("a"), process("b")
BYTES = 64 << 20


def prober(*peers: ProcessId) -> Prober:
    made = Prober(BYTES)
    made.open(EPOCH, peers)
    return made


def asked(actions: list[Action]) -> list[ProcessId]:
    return [to for to, _ in messages(actions, Probe)]


def test_a_peer_is_asked_with_bytes_and_without_and_then_the_next() -> None:
    made = prober(A, B)
    actions = made.tick(1.0)
    first = asked(actions)[0]
    second = B if first == A else A
    assert asked(actions) == [first, first]
    assert [action.bodies for action in actions if isinstance(action, Send)] == [(), (Padding(BYTES // SHARE),)]
    assert made.tick(1.0) == []
    assert made.answered(first, Probed(EPOCH, loaded=False), 1.2) is None
    assert made.answered(second, Probed(EPOCH, loaded=True), 1.2) is None, "it was not asked"
    link = made.answered(first, Probed(EPOCH, loaded=True), 1.3)
    assert link is not None
    assert abs(link.latency_s - 0.1) < 1e-9
    assert abs(link.tensor_s(BYTES) - (0.1 + SHARE * 0.1)) < 1e-9, "the 64th part of a tensor took 0.1 s more"
    assert asked(made.tick(1.3)) == [second, second]


def test_who_does_not_answer_is_passed_over() -> None:
    made = prober(A, B)
    first = asked(made.tick(0.0))[0]
    assert made.next_deadline() == PATIENCE_S
    second = asked(made.tick(PATIENCE_S))[0]
    assert {first, second} == {A, B}
    made.gone(second)
    assert made.tick(6.0) == []
    assert made.next_deadline() is None


def test_an_answer_of_another_epoch_says_nothing() -> None:
    made = prober(A)
    made.tick(0.0)
    made.answered(A, Probed(EPOCH, loaded=False), 0.1)
    assert made.answered(A, Probed(Epoch(9, 9), loaded=True), 0.2) is None
    assert made.answered(A, Probed(EPOCH, loaded=True), 0.1) == ProbedLink(0.05, 0.0), "as fast as no bytes at all"


def test_small_tensors_are_not_worth_a_probe_and_of_many_peers_only_some_are_asked() -> None:
    small = Prober(1 << 20)
    small.open(EPOCH, (A,))
    assert (small.tick(0.0), small.next_deadline()) == ([], None)
    asked_for = Prober(1 << 20, least_bytes=1 << 16)
    asked_for.open(EPOCH, (A,))
    bodies = [action.bodies for action in asked_for.tick(0.0) if isinstance(action, Send)]
    assert bodies == [(), (Padding(1 << 16),)], "unless a plan needs all links"
    made = prober(*(process(f"p{number}") for number in range(3 * AT_ONCE_MAX)))
    found = 0
    while asked(made.tick(PATIENCE_S * found)):
        found += 1
    assert found == AT_ONCE_MAX


def test_each_sender_asks_others() -> None:
    """If all began with the same peers, their probes would wait for each other, and these links would seem slow."""
    peers = tuple(process(f"p{number}") for number in range(100))
    times = Counter[ProcessId]()
    for number in range(100):
        made = Prober(BYTES, f"sender {number}")
        made.open(EPOCH, peers)
        chosen = set[ProcessId]()
        while made.next_deadline() is not None:
            chosen |= set(asked(made.tick(PATIENCE_S * len(chosen))))
        assert len(chosen) == AT_ONCE_MAX
        times.update(chosen)
    assert len(times) == len(peers)
    assert max(times.values()) < 3 * AT_ONCE_MAX
