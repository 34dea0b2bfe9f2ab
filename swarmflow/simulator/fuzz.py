"""Hunts for faults of the protocol: many random swarms under random faults. `python -m` runs it."""

from __future__ import annotations

import argparse
import math
import sys
import traceback
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from swarmflow.core.protocol.actions import PlanStages
from swarmflow.core.protocol.events import StagesPlanned
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import Plan, SharedWeights, tied_ends
from swarmflow.core.routing.routers import ROUTERS
from swarmflow.simulator.faults import DRAWN, EARLIER, FAULTS, Churn, FuzzSwarm, finish
from swarmflow.simulator.lying import Liars
from swarmflow.simulator.partition_faults import AIMED
from swarmflow.simulator.world import Settings, World

PARTITIONS_SHARE = 0.35  # of the seeds, where nothing else is asked for
CALM = ("join",)
CALM_SHARE = 0.5  # of the seeds with liars: nothing else goes wrong in them
FAILING = 0.1  # share of the plans that come to nothing
SMALL_SHARE = 0.5  # of the peers, where some are small
STRANGERS_SHARE = 0.3  # of the seeds: some or all of their peers have no certificate


@dataclass(frozen=True, slots=True)
class Hunted:
    """What a seed stands for: a swarm and its faults."""

    scenario: FuzzSwarm
    kinds: tuple[str, ...]  # of faults
    gap_s: float  # mean, between two faults


@dataclass(frozen=True, slots=True)
class Hunt:
    """The options of a hunt."""

    router: str | None = None  # instead of the one that a seed draws
    only: tuple[str, ...] = ()  # these kinds of faults, instead of those that a seed draws
    partitions: bool = False  # every seed has partitions aimed at phases, else a share of them has
    # The kinds of faults that existed when most of the seeds that tests replay were found: the same swarms as then.
    earlier: bool = False
    delay: int = 0  # of the updates, in steps
    liars: bool = False  # every seed has members that lie
    planned: bool = False  # peers are placed by plans, of which every one is drawn
    small: bool = False  # half of the peers have no memory for some stages
    shared: bool = False  # neighbouring stages share weights

    def of(self, seed: int) -> Hunted:
        """Return what a seed stands for in this hunt."""
        found = _random_swarm(seed, self.router)
        settings = found.scenario.settings
        if self.planned:
            settings = replace(settings, planner=partial(drawn_plan, Random(f"plans of {seed}")))
        if self.small:
            settings = replace(settings, small=SMALL_SHARE)
        if self.shared:
            settings = replace(settings, plan=_with_shared(settings.plan, Random(f"shared weights of {seed}")))
        if self.delay:
            settings = replace(settings, plan=replace(settings.plan, delay=self.delay))
        found = replace(found, scenario=replace(found.scenario, settings=settings))
        if self.earlier:
            return found
        if self.liars:
            found = _with_liars(found, Random(f"swarm with liars of {seed}"))
            if found.kinds == CALM:
                return found
        else:
            found = _with_strangers(found, Random(f"strangers of {seed}"))
        more = Random(f"more of {seed}")
        split = more.random() < PARTITIONS_SHARE or self.partitions
        if split and not self.only:
            return _with_partitions(found, more)
        kinds = self.only or tuple(more.sample(DRAWN, more.randint(1, len(DRAWN))))
        return replace(found, kinds=(*kinds, *(["join"] * len(kinds))))

    def __str__(self) -> str:
        """Return the options as the command takes them."""
        options = [f" --router {self.router}"] if self.router else []
        options += [f" --only {','.join(self.only)}"] if self.only else []
        options += [" --partitions"] if self.partitions else []
        options += [f" --delay {self.delay}"] if self.delay else []
        options += [" --liars"] if self.liars else []
        options += [" --planned"] if self.planned else []
        options += [" --small"] if self.small else []
        options += [" --shared"] if self.shared else []
        return "".join([*options, *([" --earlier"] if self.earlier else [])])


PLAIN = Hunt()


def _with_strangers(found: Hunted, draw: Random) -> Hunted:
    """Return the same, in a share of the seeds with peers that have no certificate, or none but such."""
    share = draw.choice((0.3, 1.0)) if draw.random() < STRANGERS_SHARE else 0.0
    settings = replace(found.scenario.settings, uncertified=share)
    return replace(found, scenario=replace(found.scenario, settings=settings))


def _with_shared(plan: Plan, draw: Random) -> Plan:
    """Return the same with weights on both sides of some edges, each up to a random stage, as of blocks cut there."""
    shared, first = list[SharedWeights](), 0
    while first < plan.stages - 1:
        last = draw.randrange(first + 1, plan.stages)
        shared.append(SharedWeights(f"shared-{len(shared)}", tuple(range(first, last + 1))))
        first = last + draw.choice((0, 1))
    return replace(plan, shared=(*shared, *plan.shared))


def _with_liars(found: Hunted, draw: Random) -> Hunted:
    """Return the same with so many peers and steps that some may lie and have the time to; half are calm otherwise."""
    settings = replace(
        found.scenario.settings,
        steps=draw.choice((8, 16, 32)),
        unusable=0.0,
        uncertified=draw.choice((0.0, 0.0, 0.3, 1.0)),
    )
    peers = settings.plan.stages * draw.choice((2, 3, 4))
    scenario = replace(found.scenario, settings=settings, peers=max(peers, 4))
    if draw.random() < CALM_SHARE:
        return Hunted(scenario, CALM, 15.0)
    return replace(found, scenario=scenario)


def _with_partitions(found: Hunted, more: Random) -> Hunted:
    """Return the same with partitions aimed at phases; the run is so slow that both sides may go on."""
    settings = replace(
        found.scenario.settings,
        steps=more.choice((6, 12, 24)),
        compute_s=more.choice(((0.3, 1.0), (0.1, 0.4), (1.0, 3.0))),
        unusable=0.0,
    )
    peers = settings.plan.stages * more.choice((1, 2, 3, 4))
    scenario = replace(found.scenario, settings=settings, peers=peers, trainers=more.choice((1, 2, 2, 3)))
    aimed = [fault.__name__ for fault in AIMED]
    kinds = more.sample(aimed, more.randint(1, len(aimed)))
    others = more.sample([name for name in DRAWN if name not in aimed], more.choice((0, 0, 1, 3)))
    return Hunted(scenario, (*kinds, *kinds, *others, "join"), more.choice((5.0, 15.0, 30.0)))


def drawn_plan(draw: Random, asked: PlanStages) -> StagesPlanned:
    """Return any stages for the peers, fixed ones too, and a gain that makes them move, or not."""
    if draw.random() < FAILING:
        return StagesPlanned(asked.number)
    stages, staying = (tuple(draw.randrange(len(asked.gradient_bytes)) for _ in asked.serves) for _ in range(2))
    return StagesPlanned(asked.number, stages, staying, 0.0, draw.choice((0.0, 1e6, math.inf)))


def _random_swarm(seed: int, router: str | None) -> Hunted:
    """Return the swarm of a seed, with the earlier kinds of faults.

    Joins are as frequent as all else together, since most faults take a peer away.
    """
    draw = Random(-1 - seed)
    stages = draw.choice((1, 2, 3, 3, 3, 5))
    microbatches, tied = draw.choice((1, 4, 8, 8, 16)), draw.random() < 0.5
    random_router = draw.choice(("shortest", "iwrr"))
    shared = tied_ends(stages) if tied else ()
    plan = Plan(stages, microbatches, shared, (), router or random_router, draw.choice((0, 8 << 20)))
    settings = Settings(
        steps=draw.choice((4, 8)),
        capacity=draw.choice((1, 2, 4, 16)),
        latency_s=draw.choice(((0.001, 0.05), (0.001, 0.005), (0.01, 0.5))),
        compute_s=draw.choice(((0.05, 0.2), (0.001, 0.01), (0.01, 0.5))),
        broken_s=draw.choice(((0.005, 0.1), (0.005, 3.0))),
        load_s=draw.choice(((0.1, 2.0), (0.01, 0.1), (1.0, 8.0))),
        checkpoint_every=draw.choice((0, 1, 2, 3)),
        validate_every=draw.choice((0, 0, 2)),
        rebalance_s=draw.choice((0.0, 3.0, 20.0)),
        plan=replace(plan, timeouts=Timeouts(late_s=draw.choice((3.0, 15.0)))),
        journal_bytes_max=draw.choice((1 << 30, 1 << 30, 300)),
        unusable=draw.choice((0.0, 0.0, 0.0, 0.005)),
    )
    faults = [fault.__name__ for fault in EARLIER if fault.__name__ != "join"]
    kinds = draw.sample(faults, draw.randint(1, len(faults)))
    peers = max(1, round(stages * draw.choice((1, 2, 2, 3, 6))))
    trainers = draw.choice((1, 2, 3))
    scenario = FuzzSwarm(replace(settings, keeps=draw.random() < 0.7), peers, trainers)
    return Hunted(scenario, (*kinds, *(["join"] * len(kinds))), draw.choice((0.5, 2.0, 5.0)))


def play(seed: int, hunt: Hunt = PLAIN) -> World:
    """Run one seed to its end. Raises InvariantViolated, or whatever a machine raised."""
    hunted = hunt.of(seed)
    world = hunted.scenario.start(seed)
    liars = Liars.among(world, Random(f"liars of {seed}")) if hunt.liars else None
    Churn(world, hunted.kinds, hunted.gap_s, helpers=3 * hunted.scenario.settings.plan.stages).unleash()
    finish(world)
    if liars is not None and hunted.kinds == CALM:
        liars.check_calm()
    return world


def _hunt_of(chosen: argparse.Namespace) -> Hunt:
    only = tuple(chosen.only.split(",")) if chosen.only else ()
    if unknown := [name for name in only if name not in FAULTS]:
        raise argparse.ArgumentTypeError(f"no such fault: {unknown}; there are {sorted(FAULTS)}")
    how = chosen.partitions, chosen.earlier, chosen.delay, chosen.liars, chosen.planned, chosen.small, chosen.shared
    return Hunt(chosen.router, only, *how)


def main(arguments: list[str] | None = None) -> int:
    """The command: 0 when every seed holds, else 1 after the first that does not."""
    parser = argparse.ArgumentParser(prog="python -m swarmflow.simulator.fuzz", description=__doc__)
    parser.add_argument("seeds", type=int, help="how many seeds to try")
    parser.add_argument("--first", type=int, default=0, help="the first seed (to replay one: --first SEED 1)")
    parser.add_argument("--router", choices=ROUTERS, help="instead of the one that each seed draws")
    parser.add_argument("--only", default="", metavar="KIND,...", help=f"only these faults: {', '.join(FAULTS)}")
    parser.add_argument("--partitions", action="store_true", help="only seeds with partitions aimed at phases")
    parser.add_argument("--earlier", action="store_true", help="only the faults that old seeds were found with")
    parser.add_argument("--delay", type=int, choices=(0, 1), default=0, help="steps by which updates are delayed")
    parser.add_argument("--liars", action="store_true", help="in every seed some members lie")
    parser.add_argument("--planned", action="store_true", help="in every seed peers move by plans, which are drawn")
    parser.add_argument("--small", action="store_true", help="half of the peers have no memory for some stages")
    parser.add_argument("--shared", action="store_true", help="in every seed neighbouring stages share weights")
    parser.add_argument("--all", action="store_true", help="go on after a seed that fails; one line for each")
    chosen = parser.parse_args(arguments)
    try:
        hunt = _hunt_of(chosen)
    except argparse.ArgumentTypeError as wrong:
        parser.error(str(wrong))
    split = failed = 0
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        try:
            split += play(seed, hunt).counts["aimed_splits"] > 0
        except Exception as error:
            failed += 1
            _report(seed, hunt, error, brief=chosen.all)
            if not chosen.all:
                return 1
    what = f"{failed} fail" if failed else "nothing lost, nothing counted twice, none stood still"
    print(f"{chosen.seeds} seeds from {chosen.first} on: {what}; {split} had partitions aimed at phases")
    return int(failed > 0)


def _report(seed: int, hunt: Hunt, error: Exception, brief: bool) -> None:
    if brief:
        print(f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", flush=True)
        return
    traceback.print_exception(error)
    hunted = hunt.of(seed)
    print(f"\n{hunted.scenario}\nfaults {sorted(set(hunted.kinds))}, {hunted.gap_s} s apart", file=sys.stderr)
    print(f"replay it: python -m swarmflow.simulator.fuzz --first {seed} 1{hunt}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
