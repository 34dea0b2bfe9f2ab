"""What the machines count for the metrics: who refuses counts a denial, who is refused counts a retry."""

from __future__ import annotations

from swarmflow.core.pipeline import lateness, offers
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.actions import Count, Send
from swarmflow.core.protocol.messages import Denied, Forward
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, Microbatch, ProcessId, Ref
from swarmflow.core.routing.iwrr import Iwrr
from tests.core.hops import receive

FEEDER, PEER, OTHER, LEADER = (ProcessId(name, 1) for name in ("feeder", "peer", "other", "leader"))
EPOCH = Epoch(0, 0)


def bodies(index: int) -> tuple[Ref, Ref]:
    return Ref(2 * index), Ref(2 * index + 1)


def test_a_full_peer_counts_its_denial() -> None:
    hops = HopTable(0, 2, 1, Dispatcher(1, Iwrr()), LEADER, without_graph=0)
    hops.open(EPOCH, ())
    first = receive(hops, FEEDER, Forward(Microbatch(EPOCH, 0), 0, FIRST_ATTEMPT), bodies(0))
    second = receive(hops, FEEDER, Forward(Microbatch(EPOCH, 1), 0, FIRST_ATTEMPT), bodies(1))
    assert not [action for action in first if isinstance(action, Count)]
    assert Count("denials", "full") in second
    assert Send(FEEDER, Denied(Microbatch(EPOCH, 1), 0, FIRST_ATTEMPT, "full")) in second


def test_who_was_refused_counts_a_retry_and_sends_again() -> None:
    dispatcher = Dispatcher(0, Iwrr())
    dispatcher.open(EPOCH, (OTHER, PEER))
    [sent] = dispatcher.offer(Microbatch(EPOCH, 0), bodies(0), 0.0)
    assert isinstance(sent, Send)
    count, again = offers.denied(dispatcher, sent.to, Denied(Microbatch(EPOCH, 0), 0, FIRST_ATTEMPT, "full"), 1.0)
    assert count == Count("retries", "full")
    assert isinstance(again, Send)
    assert {sent.to, again.to} == {OTHER, PEER}


def test_a_death_counts_a_retry_for_each_hop_that_it_held() -> None:
    dispatcher = Dispatcher(0, Iwrr())
    dispatcher.open(EPOCH, (PEER,))
    for index in range(3):
        dispatcher.offer(Microbatch(EPOCH, index), bodies(index), 0.0)
    assert lateness.gone(dispatcher, PEER, 1.0) == [Count("retries", "gone")] * 3
