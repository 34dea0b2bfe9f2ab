"""Hunts for faults of the protocol: many random swarms under random faults. `python -m` runs it."""

from __future__ import annotations

import argparse
import sys
import traceback
from random import Random

from swarmflow.core.routers import ROUTERS
from swarmflow.core.types import Plan
from swarmflow.simulator.faults import FAULTS, Churn, Scenario, finish
from swarmflow.simulator.world import Settings, World


def scenario_of(seed: int, router: str | None = None) -> tuple[Scenario, tuple[str, ...], float]:
    """What a seed stands for: a swarm, the kinds of faults, and the mean gap between them in seconds.

    Joins are as frequent as all else together, since most faults take a peer away. router: instead of the drawn one.
    """
    draw = Random(-1 - seed)
    stages = draw.choice((1, 2, 3, 3, 3, 5))
    microbatches, tied = draw.choice((1, 4, 8, 8, 16)), draw.random() < 0.5
    drawn = draw.choice(("shortest", "iwrr"))
    plan = Plan(stages, microbatches, tied, (), router or drawn, draw.choice((0, 8 << 20)))
    settings = Settings(
        plan,
        steps=draw.choice((4, 8)),
        capacity=draw.choice((1, 2, 4, 16)),
        latency_s=draw.choice(((0.001, 0.05), (0.001, 0.005), (0.01, 0.5))),
        compute_s=draw.choice(((0.05, 0.2), (0.001, 0.01), (0.01, 0.5))),
        broken_s=draw.choice(((0.005, 0.1), (0.005, 3.0))),
        load_s=draw.choice(((0.1, 2.0), (0.01, 0.1), (1.0, 8.0))),
        checkpoint_every=draw.choice((0, 1, 2, 3)),
        validate_every=draw.choice((0, 0, 2)),
        rebalance_s=draw.choice((0.0, 3.0, 20.0)),
        late_min_s=draw.choice((3.0, 15.0)),
        journal_bytes_max=draw.choice((1 << 30, 1 << 30, 300)),
        unusable=draw.choice((0.0, 0.0, 0.0, 0.005)),
    )
    faults = [name for name in FAULTS if name != "join"]
    kinds = draw.sample(faults, draw.randint(1, len(faults)))
    peers = max(1, round(stages * draw.choice((1, 2, 2, 3, 6))))
    scenario = Scenario(settings, peers, trainers=draw.choice((1, 2, 3)))
    return scenario, (*kinds, *(["join"] * len(kinds))), draw.choice((0.5, 2.0, 5.0))


def play(seed: int, router: str | None = None) -> World:
    """Run one seed to its end. Raises InvariantViolated, or whatever a machine raised."""
    scenario, kinds, gap_s = scenario_of(seed, router)
    world = scenario.start(seed)
    Churn(world, kinds, gap_s, helpers=3 * scenario.settings.plan.stages).unleash()
    finish(world)
    return world


def main(arguments: list[str] | None = None) -> int:
    """The command: 0 when every seed holds, else 1 after the first that does not."""
    parser = argparse.ArgumentParser(prog="python -m swarmflow.simulator.fuzz", description=__doc__)
    parser.add_argument("seeds", type=int, help="how many seeds to try")
    parser.add_argument("--first", type=int, default=0, help="the first seed (to replay one: --first SEED 1)")
    parser.add_argument("--router", choices=ROUTERS, help="instead of the one that each seed draws")
    chosen = parser.parse_args(arguments)
    again = f" --router {chosen.router}" if chosen.router else ""
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        try:
            play(seed, chosen.router)
        except Exception:
            traceback.print_exc()
            scenario, kinds, gap_s = scenario_of(seed, chosen.router)
            print(f"\n{scenario}\nfaults {sorted(set(kinds))}, {gap_s} s apart", file=sys.stderr)
            print(f"replay it: python -m swarmflow.simulator.fuzz --first {seed} 1{again}", file=sys.stderr)
            return 1
    print(f"{chosen.seeds} seeds from {chosen.first} on: nothing lost, nothing counted twice, none stood still")
    return 0


if __name__ == "__main__":
    sys.exit(main())
