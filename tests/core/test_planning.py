"""Placement by a plan of the links: who measures when, when a plan is asked for, and how peers come to follow it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.leading import moves, planning
from swarmflow.core.machines.leading.stage_plans import StagePlans
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.protocol.actions import Action, PlanStages
from swarmflow.core.protocol.events import Received, StagesPlanned, Tick
from swarmflow.core.protocol.messages import Granted, Heartbeat, Join, LinkGains, MeasureLinks, Message, Ready
from swarmflow.core.protocol.types import Member, Plan, ProcessId
from tests.core.samples import messages, process
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
    granted: dict[ProcessId, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.leader = Leader(ME, PLAN, replace(SETTINGS, planned=True, steps=self.steps, peers_first=99), 1, 0, 0)
        self.leader.start(0.0)

    def hear(self, sender: ProcessId, message: Message) -> list[Action]:
        return self.taken(self.leader.handle(Received(sender, message), self.now))

    def taken(self, actions: list[Action]) -> list[Action]:
        for to, granted in messages(actions, Granted):
            self.granted[to] = granted.stage
            actions = actions + self.hear(to, Ready(granted.stage, 0, "root", 4, grant=granted.grant))
        return actions

    def join(self, name: str, wish: int = -1, rebalance_s: float | None = None) -> list[Action]:
        every_s = self.rebalance_s if rebalance_s is None else rebalance_s
        peer = process(name)
        return self.hear(peer, Join("peer", "1.0", "run", Member(peer, wish), speed=1.0, rebalance_s=every_s))

    def report(self, to: ProcessId, survey: MeasureLinks) -> list[Action]:
        links = tuple(link(to, member.process) for member in survey.members)
        return self.hear(to, LinkGains(survey.survey, 1e6, (), links))

    def plan(self, actions: list[Action]) -> PlanStages:
        [asked] = [action for action in actions if isinstance(action, PlanStages)]
        return asked

    def answer(self, asked: PlanStages, stages: tuple[int, ...], planned_s: float, current_s: float) -> list[Action]:
        return self.taken(self.leader.handle(StagesPlanned(asked.number, stages, planned_s, current_s), self.now))

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
    return led


def four() -> Planned:
    """c and d have joined too, each where its links are fast."""
    led = two_served()
    led.beat()
    for name, stages in (("c", (0, 1, 0)), ("d", (0, 1, 0, 1))):
        actions = led.join(name)
        [(_, survey)] = messages(actions, MeasureLinks)
        led.answer(led.plan(led.report(process(name), survey)), stages, 1.0, 1.0)
    assert led.stages() == {"a": 0, "b": 1, "c": 0, "d": 1}
    return led


def test_a_newcomer_measures_its_links_and_is_granted_what_is_planned() -> None:
    led = two_served()
    led.beat()
    actions = led.join("c")
    assert not messages(actions, Granted)
    [(to, survey)] = messages(actions, MeasureLinks)
    assert (to, survey.links) == (process("c"), ())
    assert [member.process.name for member in survey.members] == ["a", "b"]
    asked = led.plan(led.report(to, survey))
    assert (asked.serves, asked.fixed) == ((0, 1, -1), (False, False, False))
    assert asked.bytes_per_s[2][:2] == [FAST, SLOW] == [asked.bytes_per_s[0][2], asked.bytes_per_s[1][2]]
    assert (asked.microbatches, asked.boundary_bytes, asked.gradient_bytes) == (8, 1 << 16, PLAN.reduced_bytes)
    assert messages(led.answer(asked, (0, 1, 1), 1.0, 1.0), Granted)
    assert led.stages() == {"a": 0, "b": 1, "c": 1}


def test_who_is_first_or_asks_for_a_stage_is_granted_one_at_once_and_stays_there() -> None:
    led = two_served()
    assert messages(led.join("c", wish=1), Granted)
    assert messages(led.join("d", wish=1, rebalance_s=0.0), Granted)
    led.beat(planning.PERIOD_S)
    for peer in map(process, "abcd"):
        others = tuple(entry.member for entry in led.leader.membership.peers() if entry.process != peer)
        led.report(peer, MeasureLinks(led.leader.membership.known[peer].surveys, others, ()))
    asked = led.plan(led.beat(planning.PERIOD_S + 1))
    assert asked.fixed == (False, False, True, True)


def test_peers_that_serve_measure_one_after_the_other_and_again_when_that_is_long_ago() -> None:
    led = two_served()
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


def test_a_newcomer_is_placed_as_everywhere_where_no_plan_comes() -> None:
    led = two_served()
    led.beat()
    actions = led.join("c")
    [(_, survey)] = messages(actions, MeasureLinks)
    led.plan(led.report(process("c"), survey))
    assert messages(led.beat(planning.PATIENCE_S), Granted)
    assert led.leader.membership.known[process("c")].phase is MemberPhase.READY


def test_nobody_moves_for_a_plan_that_gains_little_or_costs_more_than_what_is_left_of_the_run() -> None:
    swap = (1, 0, 0, 1)
    for steps, planned_s, gains in ((1000, 1.0, True), (1000, 15.0, False), (2, 1.0, False)):
        led = four()
        led.leader.settings = replace(led.leader.settings, steps=steps)
        led.leader.membership.known[process("a")].measured_rate = 1e5
        due(led)
        led.answer(led.plan(led.beat(planning.PERIOD_S + 1)), swap, planned_s, 16.0)
        assert bool(moves.move(led.leader, led.now)) == gains


def due(led: Planned) -> StagePlans:
    """A plan is due: a link has changed."""
    assert led.leader.plans is not None
    led.leader.plans.due = True
    return led.leader.plans


def test_half_of_a_stage_stays_while_others_load_it() -> None:
    led = four()
    due(led)
    led.answer(led.plan(led.beat(planning.PERIOD_S + 1)), (1, 0, 0, 1), 0.1, 100.0)
    actions = moves.move(led.leader, led.now)
    assert sorted((to.name, granted.stage) for to, granted in messages(actions, Granted)) == [("a", 1), ("b", 0)]
    assert not moves.move(led.leader, led.now), "the others do not move"
    led = four()
    due(led)
    led.answer(led.plan(led.beat(planning.PERIOD_S + 1)), (1, 0, 1, 0), 0.1, 100.0)
    assert len(messages(moves.move(led.leader, led.now), Granted)) == 2
    assert not messages(moves.move(led.leader, led.now), Granted), "each stage has one peer until these have loaded"


def test_the_plan_of_others_is_not_in_force() -> None:
    led = four()
    plans = due(led)
    asked = led.plan(led.beat(planning.PERIOD_S + 1))
    led.answer(asked, (0, 1, 0, 1), 1.0, 1.0)
    assert plans.target == {process(name): stage for name, stage in led.stages().items()}
    assert not led.answer(asked, (1, 0, 1, 0), 0.0, math.inf), "an answer is taken once"
    actions = led.join("e", wish=0)
    assert messages(actions, Granted)
    led.report(process("e"), MeasureLinks(0, tuple(entry.member for entry in led.leader.membership.peers()), ()))
    asked = led.plan(led.beat(planning.PERIOD_S + 1))
    led.answer(asked, (1, 0, 1, 0, 0), 9.0, 10.0)
    assert plans.target == {}, "e is new, and the plan does not pay: peers move as everywhere"
