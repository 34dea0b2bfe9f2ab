"""Surveys of links: whom the leader has measure, what a newcomer measures and reports, and where it is put."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.leading.surveys import PATIENCE_S
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.machines.serving.surveys import MEASURING_S, PLANNING_BYTES
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import are_uneven
from swarmflow.core.membership.placement import better_placed, paths_limit
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.events import Lost, Received, Tick
from swarmflow.core.protocol.messages import (
    Evicted,
    Granted,
    Heartbeat,
    Join,
    LinkGains,
    LinkRateReport,
    MeasureLinks,
    Message,
    Probe,
    Probed,
    Ready,
)
from swarmflow.core.protocol.messages.checks import SECONDS_MAX, checks_of
from swarmflow.core.protocol.types import NO_EPOCH, Epoch, Member, Plan, ProcessId
from swarmflow.core.routing.link_survey import BODY_SHARE, LONGEST, LinkSurvey
from swarmflow.core.routing.prober import PATIENCE_S as PATIENCE_A_PEER_S
from swarmflow.core.routing.prober import ProbedLink, Prober
from tests.core.samples import member, messages, process
from tests.core.test_leader import ME, SETTINGS

TENSOR_BYTES = 8 << 20
PLAN = Plan(3, 8, boundary_bytes=TENSOR_BYTES)
PEERS = {process(f"p{stage}{number}"): stage for stage in range(3) for number in range(4)}
NEWCOMER = process("new")
SLOW_S, FAST_S = 8.0, 1.0  # of a boundary tensor


@dataclass
class Led:
    """A leader of three stages with four peers each, which have reported their links."""

    now: float = 0.0
    rebalance_s: float = 0.0
    plan: Plan = PLAN
    stated: float = 0.0  # by p00, of its connection, in bytes/s
    leader: Leader = field(init=False)

    def __post_init__(self) -> None:
        self.leader = Leader(ME, self.plan, SETTINGS, 1, 0, 0)

    def hear(self, sender: ProcessId, message: Message) -> list[Action]:
        return self.leader.handle(Received(sender, message), self.now)

    def serve(self) -> None:
        self.leader.start(0.0)
        for peer, stage in PEERS.items():
            rate = self.stated if peer.name == "p00" else 0.0
            join = Join("peer", "1.0", "run", Member(peer, stage), rebalance_s=self.rebalance_s, upload_rate=rate)
            self.hear(peer, join)
            self.hear(peer, Ready(stage, 0, "root", 4))

    def report(self, *seconds: float) -> None:
        """Each peer reports links to the next stage that take so long."""
        for peer, stage in PEERS.items():
            after = [other for other, at in PEERS.items() if at == stage + 1]
            rates = tuple((other, TENSOR_BYTES / s) for other, s in zip(after, seconds, strict=False))
            self.hear(peer, LinkRateReport((), rates))

    def join(self, wish: int = -1) -> list[Action]:
        return self.hear(NEWCOMER, Join("peer", "1.0", "run", Member(NEWCOMER, wish)))

    def beat(self, seconds: float) -> list[Action]:
        """Time passes, in which everybody shows life."""
        actions: list[Action] = []
        until_s = self.now + seconds
        while self.now < until_s:
            self.now += 1.0
            for peer in (*PEERS, NEWCOMER):
                actions += self.hear(peer, Heartbeat())
            actions += self.leader.handle(Tick(), self.now)
        return actions


def asked(*seconds: float) -> tuple[Led, MeasureLinks]:
    led = Led()
    led.serve()
    led.report(*seconds)
    actions = led.join()
    assert not messages(actions, Granted)
    [(to, survey)] = messages(actions, MeasureLinks)
    assert to == NEWCOMER
    return led, survey


# --- the leader -------------------------------------------------------------------------------------------------------


def test_where_paths_differ_a_newcomer_measures_before_it_is_granted_a_stage() -> None:
    led, survey = asked(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    assert {m.process: m.stage for m in survey.members} == PEERS
    assert len(survey.links) == 2 * 16
    assert {seconds for _, _, seconds in survey.links} == {FAST_S, SLOW_S}
    assert checks_of(PLAN).wrong(survey) is None
    [(_, granted)] = messages(led.hear(NEWCOMER, LinkGains(survey.survey, 1e6, (0.0, 0.5, 0.1))), Granted)
    assert granted.stage == 1


def test_links_decide_where_they_save_more_than_computing_does() -> None:
    """With one peer less a stage takes 8/3 s instead of 8/4: a newcomer is worth two thirds of a second there."""
    for gain_s, stage in ((0.1, 0), (5.0, 2)):
        led, survey = asked(FAST_S, SLOW_S, SLOW_S, SLOW_S)
        led.leader.handle(Lost(process("p00"), "reset"), led.now)
        [(_, granted)] = messages(led.hear(NEWCOMER, LinkGains(survey.survey, 1e6, (0.0, 0.0, gain_s))), Granted)
        assert granted.stage == stage


@pytest.mark.parametrize(
    ("slow_s", "stated", "peers"),
    [(8.0, 0.0, 12), (120.0, 0.0, 9), (8.0, TENSOR_BYTES / 120, 9), (8.0, 1e9, 12), (1e6, 0.0, 3)],
)
def test_it_measures_no_more_links_than_it_has_time_for(slow_s: float, stated: float, peers: int) -> None:
    """A probe takes a 64th of a tensor's time, at the usual rate or its own: 2 s at 120, and it has 20 s."""
    led = Led()
    led.serve()
    led.report(FAST_S, slow_s, slow_s, slow_s)
    join = Join("peer", "1.0", "run", Member(NEWCOMER, -1), upload_rate=stated)
    [(_, survey)] = messages(led.hear(NEWCOMER, join), MeasureLinks)
    assert Counter(m.stage for m in survey.members) == dict.fromkeys(range(3), peers // 3)
    assert [m.capacity for m in survey.members] == [min(8, math.ceil(4 * 12 / peers))] * peers


@pytest.mark.parametrize("stated", [1e-300, 1e30])
def test_what_one_peer_states_of_its_connection_voids_no_gain(stated: float) -> None:
    led = Led(plan=replace(PLAN, reduced_bytes=(10**8,) * 3), stated=stated)
    led.serve()
    led.report(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    [(_, survey)] = messages(led.join(), MeasureLinks)
    [(_, granted)] = messages(led.hear(NEWCOMER, LinkGains(survey.survey, 1e6, (0.0, 0.0, 5.0))), Granted)
    assert granted.stage == 2


@pytest.mark.parametrize("seconds", [(1.0, 1.1, 1.2, 1.5), (1.0,), ()])
def test_where_links_are_alike_or_unknown_a_newcomer_is_granted_a_stage_at_once(seconds: tuple[float, ...]) -> None:
    led = Led()
    led.serve()
    led.report(*seconds)
    assert messages(led.join(), Granted)


def test_who_asks_for_a_stage_gets_it() -> None:
    led = Led()
    led.serve()
    led.report(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    assert [granted.stage for _, granted in messages(led.join(2), Granted)] == [2]


def test_a_newcomer_that_reports_nothing_is_placed_after_a_while() -> None:
    led, survey = asked(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    assert not messages(led.beat(PATIENCE_S - 2.0), Granted)
    assert [to for to, _ in messages(led.beat(4.0), Granted)] == [NEWCOMER]
    assert not messages(led.hear(NEWCOMER, LinkGains(survey.survey, 1e6, (0.0, 0.0, 9.0))), Granted)


def test_it_is_placed_without_gains_where_too_little_was_measured_and_put_out_where_they_cannot_be() -> None:
    led, survey = asked(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    assert not messages(led.hear(NEWCOMER, LinkGains(survey.survey + 1, 0.0, ())), Granted), "of another survey"
    assert messages(led.hear(NEWCOMER, LinkGains(survey.survey, 0.0, ())), Granted)
    led, survey = asked(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    assert messages(led.hear(NEWCOMER, LinkGains(survey.survey, 0.0, (1.0,))), Evicted)


def test_a_newcomer_that_measures_is_granted_the_stage_of_which_nobody_is_left() -> None:
    led, _ = asked(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    actions: list[Action] = []
    for peer, stage in PEERS.items():
        if stage == 1:
            actions += led.leader.handle(Lost(peer, "reset"), led.now)
    assert (NEWCOMER, 1) in [(to, granted.stage) for to, granted in messages(actions, Granted)]


def test_a_newcomer_that_measures_is_granted_it_before_one_that_was_put_out() -> None:
    led, _ = asked(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    bad = led.leader.membership.enter(Join("peer", "1.0", "run", Member(process("a-bad"), -1)), 0, 0.0)
    led.leader.membership.mark(bad, MemberPhase.BARRED)
    actions = [
        action
        for peer, stage in PEERS.items()
        if stage == 1
        for action in led.leader.handle(Lost(peer, "reset"), led.now)
    ]
    assert [(to, granted.stage) for to, granted in messages(actions, Granted)] == [(NEWCOMER, 1)]


@pytest.mark.parametrize("stated", [0.0, 1e-300, 1e30])
@pytest.mark.parametrize(("link_s", "moves"), [(FAST_S, 1), (30.0, 0)])
def test_a_peer_is_moved_by_computing_where_that_shows_beside_the_time_on_links(
    link_s: float, moves: int, stated: float
) -> None:
    """A stage of one computes for 8 s and of two for 4: much beside 4 s on the fastest links, nothing beside 120."""
    led = Led(rebalance_s=10.0, stated=stated)
    led.serve()
    led.report(link_s, 8 * link_s, 8 * link_s, 8 * link_s)
    for number in range(3):
        led.leader.handle(Lost(process(f"p2{number}"), "reset"), led.now)
    assert paths_limit(led.leader.membership)
    assert len(better_placed(led.leader.membership, 0, 100.0)) == moves


@pytest.mark.parametrize(
    ("rates", "stated", "uneven"),
    [
        ((10.0, 2.0, 1.0), 0.0, True),
        ((10.0, 8.0, 1.0), 0.0, False),
        ((10.0, 1.0), 0.0, False),
        ((10.0, 2.0, 1.0), 20.0, False),  # its connection is nearly as fast as stated
        ((10.0, 2.0, 1.0), 100.0, True),
    ],
)
def test_paths_limit_a_peer_where_most_of_its_links_are_far_slower_than_the_fastest(
    rates: tuple[float, ...], stated: float, uneven: bool
) -> None:
    assert are_uneven(rates, stated) == uneven


@pytest.mark.parametrize(
    "survey",
    [
        MeasureLinks(1, (member("a"), member("b", 1)), ((0, 2, 1.0),)),  # no such place
        MeasureLinks(1, (member("a"), member("b", 2)), ((0, 1, 1.0),)),  # not the next stage
        MeasureLinks(1, (member("a"), member("b", 1)), ((0, 1, -1.0),)),
        MeasureLinks(1, (member("a"), member("b", 1)), ((0, 1, float("nan")),)),
        MeasureLinks(1, (member("a"),) * 129, ()),
    ],
)
def test_a_survey_that_cannot_be_is_refused(survey: MeasureLinks) -> None:
    assert checks_of(PLAN).wrong(survey) is not None


# --- the newcomer -----------------------------------------------------------------------------------------------------


@dataclass
class Joining:
    """A peer that asks to be let in, and peers that answer its probes after so many seconds of a boundary tensor."""

    seconds: dict[ProcessId, float]
    now: float = 0.0
    capacity: int = 2
    plan: Plan = PLAN
    peer: PeerMachine = field(init=False)

    def __post_init__(self) -> None:
        settings = PeerSettings(Join("peer", "1.0", "run", Member(NEWCOMER, -1, self.capacity)))
        self.peer = PeerMachine(NEWCOMER, LeaderLease(ME.process), self.plan, settings)

    def survey(self, message: MeasureLinks, until_s: float = 100.0) -> LinkGains:
        """Let it measure, and return what it reports."""
        actions = self.peer.handle(Received(ME.process, message, role="trainer"), self.now)
        while not (reports := messages(actions, LinkGains)):
            probes = messages(actions, Probe)
            actions = []
            for to, probe in probes:
                if to in self.seconds:
                    self.now += self.seconds[to] / 64 if probe.loaded else 0.0
                    actions += self.peer.handle(Received(to, Probed(NO_EPOCH, probe.loaded)), self.now)
            if not probes:
                self.now = max(self.now, self.peer.next_deadline())
                assert self.now < until_s
                self.peer.lease.renew(self.now)
                actions += self.peer.handle(Tick(), self.now)
        return reports[0][1]


def test_a_newcomer_reports_what_its_links_save_at_each_stage() -> None:
    """All links take 8 s, but those from the newcomer to stages 0 and 2: at stage 1 it saves 7 s on each of two."""
    _, survey = asked(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    links = tuple((sender, receiver, SLOW_S) for sender, receiver, _ in survey.links)
    near = {peer: SLOW_S if stage == 1 else FAST_S for peer, stage in PEERS.items()}
    report = Joining(near).survey(MeasureLinks(3, survey.members, links))
    assert report.survey == 3
    assert report.rate == pytest.approx(TENSOR_BYTES / FAST_S)
    # Eight microbatches are in flight, of which it takes two, there and back.
    assert report.gains == pytest.approx((0.0, 2 * (2 * 14.0) / 8, 0.0), abs=1e-6)


def test_one_that_reports_impossibly_slow_links_makes_no_other_link_slow_and_its_own_ones_only_so_much() -> None:
    """All links take 8 s, those of p10 are not known, and p13 says that its own take 30 years.

    Each peer holds two of eight microbatches, so p13 has to be used: who relieves it, before or after it, saves at most
    15 times 8 s on each of two.
    """
    _, survey = asked(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    members = tuple(replace(m, capacity=2) for m in survey.members)
    told = {process("p10"): None, process("p13"): SECONDS_MAX}
    links = [(one, other, told.get(members[one].process, SLOW_S)) for one, other, _ in survey.links]
    known = tuple((one, other, seconds) for one, other, seconds in links if seconds is not None)
    report = Joining(dict.fromkeys(PEERS, SLOW_S)).survey(MeasureLinks(1, members, known))
    gain_s = 2 * 2 * (LONGEST - 1) * SLOW_S / 8
    assert report.gains == pytest.approx((0.0, gain_s, gain_s))


def test_memory_for_more_than_a_step_is_worth_no_more_than_that_for_a_step() -> None:
    """One microbatch fits at stage 0, and any number at the other stages: what a newcomer holds lets others go on."""
    _, survey = asked(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    kept = [m for m in survey.members if m.stage > 0 or m.process.name == "p00"]
    members = tuple(replace(m, capacity=1 if m.stage == 0 else 1 << 20) for m in kept)
    pairs = [(one, other) for one, a in enumerate(kept) for other, b in enumerate(kept) if b.stage == a.stage + 1]
    message = MeasureLinks(1, members, tuple((one, other, SLOW_S) for one, other in pairs))
    near, plan = dict.fromkeys(PEERS, SLOW_S), replace(PLAN, microbatches=64)
    step, more = (Joining(near, capacity=held, plan=plan).survey(message) for held in (64, 1 << 30))
    assert step.gains[0] > 0
    assert step == more


def test_it_does_without_the_links_of_those_that_do_not_answer_and_without_any_if_too_few_do() -> None:
    _, survey = asked(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    some = {peer: FAST_S for peer in PEERS if peer.name != "p00"}
    assert len(Joining(some).survey(survey).gains) == PLAN.stages
    one = {peer: FAST_S for peer, stage in PEERS.items() if stage < 2 or peer.name == "p20"}
    assert len(Joining(one).survey(survey).gains) == PLAN.stages, "a quarter of each stage is a fair sample"
    few = {peer: FAST_S for peer, stage in PEERS.items() if stage < 2}
    joining = Joining(few)
    report = joining.survey(survey)
    assert report.gains == ()
    assert joining.now == pytest.approx(4 * PATIENCE_A_PEER_S, abs=1.0)
    nobody = Joining({})
    assert (nobody.survey(survey), nobody.now) == (LinkGains(survey.survey, 0.0, ()), MEASURING_S)


def test_where_no_other_links_are_told_it_reports_its_own_and_believes_no_body_that_takes_no_time() -> None:
    """A busy peer answers both messages of a probe at once, 0.8 s after they were sent."""
    _, survey = asked(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    joining = Joining(dict.fromkeys(PEERS, FAST_S), plan=replace(PLAN, boundary_bytes=1 << 20))
    report = joining.survey(MeasureLinks(1, survey.members, ()))
    assert report.gains == ()
    assert {process for process, _, _ in report.links} == set(PEERS)
    assert all(rate == pytest.approx(PLANNING_BYTES * 64 / FAST_S) for _, _, rate in report.links)
    busy = LinkSurvey(MeasureLinks(1, (), ()), PLAN, Prober(1 << 20, least_bytes=PLANNING_BYTES), 4, 1.0)
    busy.links[NEWCOMER] = ProbedLink(0.4, 0.0)
    [found] = [report for _, report in (busy.tick(2.0),) if report is not None]
    [(to, latency_s, rate)] = found.links
    assert (to, latency_s) == (NEWCOMER, 0.4)
    assert rate == pytest.approx(PLANNING_BYTES / (BODY_SHARE * 0.8))


def test_it_does_not_wait_for_a_peer_that_it_cannot_reach() -> None:
    _, survey = asked(FAST_S, SLOW_S, SLOW_S, SLOW_S)
    joining = Joining({})
    actions = joining.peer.handle(Received(ME.process, survey, role="trainer"), 0.0)
    probed = list[ProcessId]()
    while not messages(actions, LinkGains):
        targets = {to for to, _ in messages(actions, Probe)}
        probed += targets
        actions = [action for to in targets for action in joining.peer.handle(Lost(to, "unreachable"), 0.1)]
        actions += joining.peer.handle(Tick(), 0.1)
    assert sorted(probed) == sorted(PEERS)


def test_a_peer_answers_who_measures_before_it_has_a_stage() -> None:
    peer = Joining({}).peer
    peer.epoch = Epoch(0, 3)
    answers = messages(peer.handle(Received(process("x"), Probe(NO_EPOCH, loaded=True)), 0.0), Probed)
    assert answers == [(process("x"), Probed(NO_EPOCH, loaded=True))]
