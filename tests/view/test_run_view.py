"""The view of a run, made from a leader's state."""

from __future__ import annotations

import json
from dataclasses import replace

from swarmflow.core.pipeline.flight_table import FlightTable
from swarmflow.core.pipeline.in_flight import FlightState, InFlight
from swarmflow.core.protocol.messages import Done, Heartbeat, LinkRateReport, PeerSummary
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Ref
from swarmflow.view.run_view import host_of, view_of
from swarmflow.view.timeline import Timeline
from tests.core.samples import member, microbatch, process
from tests.core.test_leader import ME, Bench

A, B = process("a"), process("b")


def test_it_says_what_a_gathering_run_waits_for_and_since_when() -> None:
    bench, timeline = Bench(stages=2), Timeline()
    bench.join(A, 0)
    bench.ready(A, 0)
    before = view_of(bench.leader, FlightTable(), timeline, "name", "id", 100.0)
    assert (before["phase"], before["waiting_for"], before["waiting_s"]) == ("gathering", "a peer for stage 1", 0.0)
    after = view_of(bench.leader, FlightTable(), timeline, "name", "id", 107.0)
    assert after["waiting_s"] == 7.0
    assert (after["loss"], after["left_s"], after["hops"], after["links"]) == (None, None, [], [])


def test_it_shows_where_each_microbatch_is_and_what_peers_report() -> None:
    bench, flights = Bench(stages=2), FlightTable()
    for peer, stage in ((A, 0), (B, 1)):
        bench.join(peer, stage)
        bench.ready(peer, stage)
    flight = InFlight(microbatch(0, bench.leader.epoch), Ref(1, 8), Ref(2, 8), FIRST_ATTEMPT)
    flight.holder = A
    flight.move(FlightState.UNREQUESTED)
    flight.successor = B
    flights.add(flight)
    bench.hear(A, Heartbeat(queued=1, held=2, version=0, epoch=bench.leader.epoch))
    bench.hear(A, PeerSummary(hops=3, compute_s=1.23456, reach="public"))
    bench.hear(A, LinkRateReport((), ((B, 1000.0),)))
    view = view_of(bench.leader, flights, Timeline(), "name", "id", 100.0)
    assert view["phase"] == "running"
    assert view["hops"] == [(0, 0, str(A), "forward"), (0, 1, str(B), "forward")]
    bench.hear(A, Done(microbatch(0, bench.leader.epoch), 0, FIRST_ATTEMPT))
    view = view_of(bench.leader, flights, Timeline(), "name", "id", 100.0)
    assert view["hops"] == [(0, 0, str(A), "done"), (0, 1, str(B), "forward")]
    assert [link[:3] for link in view["links"]] == [(str(A), str(B), 1), (str(ME.process), str(A), 1)]
    [peer] = view["stages"][0]["peers"]
    assert (peer["phase"], peer["held"], peer["queued"]) == ("serving", 2, 1)
    assert (peer["summary"]["microbatches"], peer["summary"]["compute_s"]) == (3, 1.235)
    assert view["stages"][1]["peers"][0]["summary"] is None
    assert json.loads(json.dumps(view))["trainers"] == [
        {"id": str(ME.process), "name": "t0", "leads": True, "address": ""}
    ]


def test_the_host_is_that_of_the_first_direct_address() -> None:
    relayed, direct = "/ip4/9.9.9.9/tcp/1/p2p/R/p2p-circuit/p2p/A", "/ip4/10.0.0.7/tcp/4001/p2p/A"
    assert host_of(replace(member("a"), addresses=(relayed, direct))) == "10.0.0.7"
    assert host_of(replace(member("a"), addresses=(relayed,))) == ""
    assert host_of(replace(member("a"), addresses=("/dns4/host.example/tcp/1/p2p/A",))) == "host.example"
