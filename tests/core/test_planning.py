"""Placement by a plan of the links: who measures when, when a plan is asked for, and how peers come to follow it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.leading import moves, planning
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.protocol.actions import Action, PlanStages
from swarmflow.core.protocol.events import Lost, Received, StagesPlanned, Tick
from swarmflow.core.protocol.messages import (
    Drain,
    Granted,
    Heartbeat,
    Join,
    LinkGains,
    LoadFailed,
    MeasureLinks,
    Message,
    Ready,
)
from swarmflow.core.protocol.types import MeasuredLink, Member, Plan, ProcessId
from tests.core.samples import messages, of_type, process
from tests.core.test_leader import ME, SETTINGS

PLAN = Plan(2, 8, boundary_bytes=1 << 16, reduced_bytes=(4_000_000, 4_000_000))
NAMES = "abcdef"  # one after the other in two regions: a, c and e, and b, d and f
FAST, SLOW = 5e6, 5e5  # in bytes/s


def link(one: ProcessId, other: ProcessId) -> tuple[ProcessId, float, float]:
    near = NAMES.index(one.name) % 2 == NAMES.index(other.name) % 2
    return (other, 0.001, FAST) if near else (other, 0.02, SLOW)


@dataclass
class Planned:
    """A leader of two stages that places peers by a plan."""

    rebalance_s: float = 60.0
    steps: int = 1000
    now: float = 0.0
    leader: Leader = field(init=False)
    failing: set[str] = field(init=False, default_factory=set)  # whose next load fails

    def __post_init__(self) -> None:
        self.leader = Leader(ME, PLAN, replace(SETTINGS, planned=True, steps=self.steps, peers_first=99), 1, 0, 0)
        self.leader.start(0.0)

    def hear(self, sender: ProcessId, message: Message) -> list[Action]:
        return self.taken(self.leader.handle(Received(sender, message), self.now))

    def taken(self, actions: list[Action]) -> list[Action]:
        for to, granted in messages(actions, Granted):
            loads = to.name not in self.failing
            self.failing -= {to.name}
            answer = Ready(granted.stage, 0, "root", 4, granted.grant)
            failed = LoadFailed(granted.stage, 0, "no memory", granted.grant)
            actions = actions + self.hear(to, answer if loads else failed)
        return actions

    def join(self, name: str, wish: int = -1, rebalance_s: float | None = None) -> list[Action]:
        every_s = self.rebalance_s if rebalance_s is None else rebalance_s
        peer = process(name)
        return self.hear(peer, Join("peer", "1.0", "run", Member(peer, wish), speed=1.0, rebalance_s=every_s))

    def report(self, to: ProcessId, survey: MeasureLinks) -> list[Action]:
        links = tuple(link(to, member.process) for member in survey.members)
        return self.hear(to, LinkGains(survey.survey, 1e6, (), links))

    def plan(self, actions: list[Action]) -> PlanStages:
        [asked] = of_type(actions, PlanStages)
        return asked

    def answer(
        self,
        asked: PlanStages,
        stages: tuple[int, ...],
        planned_s: float = 1.0,
        staying_s: float = 1.0,
        staying: tuple[int, ...] = (),
    ) -> list[Action]:
        """The plan is there. staying: as it is without moves; none: as planned, but for those who would move."""
        stay = staying or tuple(new if now < 0 else now for new, now in zip(stages, asked.serves, strict=True))
        planned = StagesPlanned(asked.number, stages, stay, planned_s, staying_s)
        return self.taken(self.leader.handle(planned, self.now))

    def measure(self) -> None:
        """Everybody who is asked to measure its links does so, until nobody is; the plan is that they stay."""
        quiet = 0
        while quiet < 2:
            actions, quiet = self.beat(), quiet + 1
            for to, survey in messages(actions, MeasureLinks):
                self.report(to, survey)
                quiet = 0
            for asked in of_type(actions, PlanStages):
                self.answer(asked, asked.serves)

    def due(self) -> PlanStages:
        """A plan, since a link has changed."""
        assert self.leader.plans is not None
        self.leader.plans.due = True
        return self.next_plan()

    def next_plan(self) -> PlanStages:
        """Time passes until a plan is asked for."""
        until_s = self.now + 2 * planning.PERIOD_S
        while not of_type(actions := self.beat(), PlanStages):
            assert self.now < until_s
        return self.plan(actions)

    def beat(self, seconds: float = 1.0) -> list[Action]:
        """Time passes, in which everybody shows life."""
        actions, until_s = list[Action](), self.now + seconds
        while self.now < until_s:
            self.now += 1.0
            for peer in list(self.leader.membership.known):
                actions += self.hear(peer, Heartbeat())
            actions += self.taken(self.leader.handle(Tick(), self.now))
        return actions

    def stages(self) -> dict[str, int]:
        return {entry.process.name: entry.member.stage for entry in self.leader.membership.peers()}


def two_served() -> Planned:
    led = Planned()
    for name in "ab":
        led.join(name)
    assert led.stages() == {"a": 0, "b": 1}
    led.measure()
    return led


def joined(led: Planned, name: str) -> PlanStages:
    """A newcomer has measured its links; the plan that is asked for then."""
    [(_, survey)] = messages(led.join(name), MeasureLinks)
    return led.plan(led.report(process(name), survey))


def four(rebalance_s: float = 10.0) -> Planned:
    """c and d have joined too, each where its links are fast, and all have served for a while."""
    led = two_served()
    led.rebalance_s = rebalance_s
    led.answer(joined(led, "c"), (0, 1, 0))
    led.answer(joined(led, "d"), (0, 1, 0, 1))
    for entry in led.leader.membership.peers():
        entry.rebalance_s = rebalance_s
    assert led.stages() == {"a": 0, "b": 1, "c": 0, "d": 1}
    led.beat(planning.PERIOD_S)
    return led


def moved(led: Planned) -> dict[str, int]:
    """Who moves between two steps, and where to."""
    return {move.process.name: move.stage for move in moves.due(led.leader, led.now)}


def test_a_newcomer_measures_its_links_and_is_granted_what_is_planned() -> None:
    led = two_served()
    actions = led.join("c")
    assert not messages(actions, Granted)
    [(to, survey)] = messages(actions, MeasureLinks)
    assert (to, survey.links) == (process("c"), ())
    assert [member.process.name for member in survey.members] == ["a", "b"]
    asked = led.plan(led.report(to, survey))
    assert (asked.serves, asked.fixed) == ((0, 1, -1), (False, False, False))
    assert sorted(asked.links)[-2:] == [MeasuredLink(2, 0, 0.001, FAST), MeasuredLink(2, 1, 0.02, SLOW)]
    assert (asked.microbatches, asked.boundary_bytes, asked.gradient_bytes) == (8, 1 << 16, PLAN.reduced_bytes)
    assert messages(led.answer(asked, (0, 1, 1)), Granted)
    assert led.stages() == {"a": 0, "b": 1, "c": 1}


def test_a_newcomer_goes_where_its_links_are_good_for_if_nobody_moves_for_it() -> None:
    """The plan swaps a and b, which gains too little: c is granted its stage without that."""
    led = two_served()
    led.answer(joined(led, "c"), (1, 0, 0), 15.0, 16.0, staying=(0, 1, 1))
    assert led.stages() == {"a": 0, "b": 1, "c": 1}
    assert not moved(led)


def test_what_a_newcomer_computes_is_no_gain_of_a_move() -> None:
    """With c and d both stages compute twice as fast, and exchanges take as long as before: nobody moves."""
    led = two_served()
    led.answer(joined(led, "c"), (1, 0, 0), 1.0, 1.0)
    assert not moved(led)


def test_until_nearly_all_have_measured_their_links_only_newcomers_are_placed_by_them() -> None:
    led = Planned()
    for name in "ab":
        led.join(name)
    led.beat()  # one of both is asked, and has not answered yet
    asked = joined(led, "c")
    assert asked.fixed == (True, True, False)
    led.answer(asked, (0, 1, 0))
    assert not of_type(led.beat(planning.PERIOD_S + 1), PlanStages)
    assert led.stages() == {"a": 0, "b": 1, "c": 0}


def test_who_is_first_or_asks_for_a_stage_is_granted_one_at_once_and_stays_there() -> None:
    led = two_served()
    assert messages(led.join("c", wish=1), Granted)
    assert messages(led.join("d", wish=1, rebalance_s=0.0), Granted)
    led.measure()
    assert led.due().fixed == (False, False, True, True)


def test_peers_that_serve_measure_one_after_the_other_and_again_when_that_is_long_ago() -> None:
    led = Planned()
    for name in "ab":
        led.join(name)
    [(first, survey)] = messages(led.beat(), MeasureLinks)
    assert not messages(led.beat(), MeasureLinks), "one of few at a time"
    led.report(first, survey)
    [(second, survey)] = messages(led.beat(), MeasureLinks)
    assert {first.name, second.name} == {"a", "b"}
    led.report(second, survey)
    assert not messages(led.beat(planning.AGED_S - 5), MeasureLinks)
    [(again, _)] = messages(led.beat(10), MeasureLinks)
    assert again == first
    [(other, _)] = messages(led.beat(planning.PATIENCE_S + 1), MeasureLinks)
    assert other == second, "the first one has not answered"


def test_links_of_which_nobody_asked_or_of_strangers_are_not_kept() -> None:
    led = two_served()
    plans = led.leader.plans
    assert plans is not None
    links = tuple((process(f"stranger {number}"), 0.1, 1e6) for number in range(50))
    led.hear(process("a"), LinkGains(led.leader.membership.known[process("a")].surveys, 1e6, (), links))
    assert plans.links.count == 2, "it was not asked"
    [(to, survey)] = messages(led.join("c"), MeasureLinks)
    led.hear(to, LinkGains(survey.survey, 1e6, (), (*links, link(to, process("a")))))
    assert plans.links.count == 3
    led.leader.handle(Lost(to, "reset"), led.now)
    led.beat()
    assert plans.links.count == 2


def test_a_newcomer_is_placed_as_everywhere_where_no_plan_comes() -> None:
    for fails in (True, False):
        led = two_served()
        asked = joined(led, "c")
        if fails:
            assert messages(led.taken(led.leader.handle(StagesPlanned(asked.number), led.now)), Granted)
        else:
            assert messages(led.beat(planning.ANSWER_S), Granted)
        assert led.leader.membership.known[process("c")].phase is MemberPhase.READY


def test_nobody_moves_for_a_plan_that_gains_little_or_costs_more_than_what_is_left_of_the_run() -> None:
    for steps, planned_s, gains in ((1000, 1.0, True), (1000, 15.0, False), (2, 1.0, False)):
        led = four()
        led.leader.settings = replace(led.leader.settings, steps=steps)
        led.leader.membership.known[process("a")].measured_rate = 1e5
        led.answer(led.due(), (1, 0, 0, 1), planned_s, 16.0)
        assert bool(moved(led)) == gains


def test_half_of_a_stage_stays_while_others_load_it() -> None:
    led = four()
    led.answer(led.due(), (1, 0, 0, 1), 0.1, 100.0)
    assert moved(led) == {"a": 1, "b": 0}
    assert messages(moves.move(led.leader, led.now), Granted)
    assert not moved(led), "the others do not move"
    led = four()
    led.answer(led.due(), (1, 0, 1, 0), 0.1, 100.0)
    assert moved(led) == {"a": 1, "b": 0}
    moves.move(led.leader, led.now)
    assert not moved(led), "each stage has one peer until these have loaded"


def test_a_peer_moves_once_in_its_period() -> None:
    led = four(rebalance_s=1000.0)
    led.answer(led.due(), (1, 0, 0, 1), 0.1, 100.0)
    assert not moved(led)
    led.beat(1000.0)
    assert moved(led) == {"a": 1, "b": 0}


def test_who_cannot_load_the_planned_stage_is_not_sent_there_again() -> None:
    led = four()
    led.answer(led.due(), (1, 0, 0, 1), 0.1, 100.0)
    led.failing = {"a"}
    led.taken(moves.move(led.leader, led.now))
    led.beat(2 * led.rebalance_s)
    assert "a" not in moved(led)
    assert led.leader.plans is not None
    assert process("a") not in led.leader.plans.target


def test_an_answer_is_taken_once_and_a_plan_that_does_not_pay_leaves_the_former_one() -> None:
    led = four()
    asked = led.due()
    led.answer(asked, (0, 1, 0, 1))
    assert led.leader.plans is not None
    target = dict(led.leader.plans.target)
    assert target == {process(name): stage for name, stage in led.stages().items()}
    assert not led.answer(asked, (1, 0, 1, 0), 0.0, math.inf)
    led.answer(led.due(), (1, 0, 1, 0), 9.0, 10.0)
    assert led.leader.plans.target == target


def test_one_that_leaves_makes_one_plan_due_and_not_one_after_the_other() -> None:
    led = four()
    led.hear(process("d"), Drain())
    led.answer(led.next_plan(), (0, 1, 0))
    assert not of_type(led.beat(5 * planning.PERIOD_S), PlanStages)
