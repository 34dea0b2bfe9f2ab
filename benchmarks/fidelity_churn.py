"""Whether the simulator tells the truth of churn too: `python -m benchmarks.fidelity_churn` (Linux, root).

Nine real peers in three stages train over links of unlike speeds, shaped by the kernel, with each router in turn. In
each step a tenth of the peers is killed, at random moments, and started again. The simulator is told what a microbatch
takes to compute, what each link carries when it is full, and when which peer died and was back. What both take for a
step is compared, over as many seconds with the same deaths, and whether they put the routers in the same order. See
README.md beside this file.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from statistics import fmean, stdev

from benchmarks.fidelity import ERROR_WANTED, RUN_S, ComputeTimes, computed, scenario_head, settings
from benchmarks.full_links import FullLink, full_link
from benchmarks.routers import PEERS, STAGES, TRAINER_MBPS, UNLIKE_MBPS
from benchmarks.shaped import CARRIED, inside, machines, unavailable
from swarmflow.demo.corpus import write_corpus
from swarmflow.forecast.simulation import Simulation
from swarmflow.local.swarm import LocalProcess, LocalSwarm, terminable
from swarmflow.simulator.scenario import load

ROUTERS = ("iwrr", "flow", "gwtf", "shortest")
MICROBATCHES, CAPACITY = 32, 6
STEPS, WARMUP = 24, 4
LEAVE_CHANCE = 0.1  # of a peer, in a step
SIMULATIONS = 4  # of one trace: with gwtf they gave 15.4 to 17.4 s a step, since choices among equals are drawn
STEPS_RATIO = 3  # the simulator may make so many times as many steps as were measured in the same time
Z = 1.96  # standard errors in half of a 95% interval


@dataclass(frozen=True)
class ChurnedSwarm:
    """What a real swarm took under churn. seconds: of each measured step. trace: (seconds, what, number of a peer)."""

    seconds: list[float]
    trace: list[tuple[float, str, int]]  # since the end of the warm-up
    computed: list[ComputeTimes]  # by stage


@dataclass(frozen=True)
class StepTimes:
    """Seconds of each step, in runs with the same deaths."""

    seconds: list[float]
    runs: int = 1

    @property
    def mean_s(self) -> float:
        """Over the steps of all runs."""
        return fmean(self.seconds)

    @property
    def half_s(self) -> float:
        """Half of the 95% interval of the mean. More runs do not make it narrower: their deaths are the same."""
        return Z * stdev(self.seconds) / math.sqrt(len(self.seconds) / self.runs)

    def __str__(self) -> str:
        return f"{self.mean_s:.2f} ± {self.half_s:.2f} s a step"


@dataclass
class KillingChurn:
    """Kills a tenth of the peers a step and starts them again, as the simulator's `leave_chance` kills them.

    Who alone served its stage in the last step stays.
    """

    swarm: LocalSwarm
    random: Random
    began_s: float
    trace: list[tuple[float, str, int]] = field(default_factory=list)
    _steps: int = 0  # that were seen
    _due: list[tuple[float, int]] = field(default_factory=list)  # when which peer is to die
    _away: dict[int, LocalProcess] = field(default_factory=dict)  # started again, and not in the swarm yet

    def look(self) -> None:
        """Do what is due now."""
        now, steps = time.time(), self.swarm.steps()
        if len(steps) > self._steps:
            self._steps = len(steps)
            for number in range(PEERS):
                if self.random.random() < LEAVE_CHANCE and number not in self._away:
                    heappush(self._due, (now + self.random.random() * steps[-1]["seconds"], number))
        for number, process in list(self._away.items()):
            if "granted stage" in process.log.read_text(encoding="utf-8"):
                del self._away[number]
                self.trace.append((now - self.began_s, "join", number))
        while self._due and self._due[0][0] <= now:
            self._kill(heappop(self._due)[1], steps[-1]["peers"])

    def _kill(self, number: int, peers: list[int]) -> None:
        stage = number % STAGES
        others = [other for other in range(stage, PEERS, STAGES) if other not in self._away and other != number]
        if number in self._away or not others or peers[stage] < 2:
            return
        process = self.swarm.peers[number]
        process.kill()
        self.trace.append((time.time() - self.began_s, "leave", number))
        self._away[number] = self.swarm.start_again(process)


def main() -> int:
    """0 where every prediction is within ERROR_WANTED, and the order is the same, else 1; 2: it cannot be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity_churn", description=__doc__)
    parser.add_argument("--router", action="append", choices=ROUTERS, help="may be given again; all, if none is")
    parser.add_argument("--steps", type=int, default=STEPS, help="that are measured")
    parser.add_argument("--seed", type=int, default=0, help="of who dies when")
    parser.add_argument("--calm", action="store_true", help="nobody dies")
    options = parser.parse_args()
    reason = unavailable()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    links = {rate: full_link(rate) for rate in UNLIKE_MBPS}
    for rate, link in links.items():
        print(f"full links of {rate:.0f} Mb/s carry {link.up_mbps:.2f} up and {link.down_mbps:.2f} down", flush=True)
    real: dict[str, StepTimes] = {}
    predicted: dict[str, StepTimes] = {}
    for router in options.router or ROUTERS:
        random = None if options.calm else Random(options.seed)
        with tempfile.TemporaryDirectory(prefix="swarmflow-fidelity-") as folder:
            measured = run(Path(folder), router, options.steps, random)
            real[router] = StepTimes(measured.seconds)
            predicted[router] = simulated(Path(folder), router, measured, links)
        deaths = sum(what == "leave" for _, what, _ in measured.trace)
        both = f"measured {real[router]}, simulated {predicted[router]}"
        print(f"{router:9} {deaths} deaths; {both}: {error(real[router], predicted[router]):+.1%}", flush=True)
    wrong = [router for router in real if abs(error(real[router], predicted[router])) > ERROR_WANTED]
    turned = [pair for pair in itertools.combinations(real, 2) if contradicts(*pair, real, predicted)]
    for one, other in turned:
        print(f"{one} and {other} are the other way round")
    print(f"wanted: within {ERROR_WANTED:.0%}, and the routers in the same order where 95% intervals tell them apart")
    return int(bool(wrong or turned))


def run(folder: Path, router: str, count: int, random: Random | None) -> ChurnedSwarm:
    """Train with real processes, and kill some of them; random None: nobody dies."""
    corpus = folder / "corpus.txt"
    write_corpus(corpus)
    run_settings = settings(corpus)
    run_settings["train"] |= {"router": router, "microbatches": MICROBATCHES}
    rates = {name: mbps(number) for number, name in enumerate(peer_names())} | {"trainer-0": TRAINER_MBPS}
    with machines(list(rates), rates) as addresses:
        within = {name: inside(name) for name in rates}
        with LocalSwarm(folder / "swarm", run_settings, within=within) as swarm:
            swarm.start_trainer("--listen", f"{addresses['trainer-0']}:0")
            for number, name in enumerate(peer_names()):
                served = ("--metrics-port", "0", "--metrics-host", addresses[name])
                chosen = ("--capacity", str(CAPACITY), "--rebalance-period", "0", "--no-copies")
                swarm.start_peer("--listen", f"{addresses[name]}:0", *served, *chosen, stage=number % STAGES)
            all_peers = [PEERS // STAGES] * STAGES
            swarm.wait(lambda: all_peers in (step["peers"] for step in swarm.steps()), "a step with all peers", RUN_S)
            warm: int = next(step["step"] for step in swarm.steps() if step["peers"] == all_peers) + WARMUP
            began_s = swarm.wait_steps(warm, RUN_S)[warm - 1]["time"]
            churn = KillingChurn(swarm, random, began_s) if random is not None else None

            def enough() -> bool:
                if churn is not None:
                    churn.look()
                return len(swarm.steps()) >= warm + count

            swarm.wait(enough, f"{count} steps", RUN_S)
            found = [computed(peer) for peer in swarm.peers]
            times = [step["time"] for step in swarm.steps()[warm - 1 : warm + count]]
    stages = [ComputeTimes.of_all(found[stage::STAGES]) for stage in range(STAGES)]
    seconds = [after - before for before, after in itertools.pairwise(times)]
    return ChurnedSwarm(seconds, churn.trace if churn is not None else [], stages)


def simulated(folder: Path, router: str, measured: ChurnedSwarm, links: dict[float, FullLink]) -> StepTimes:
    """The same time as the simulator has it, under several seeds."""
    file, trace = folder / "scenario.toml", folder / "trace.csv"
    file.write_text(scenario(router, measured, links), encoding="utf-8")
    runs = [simulated_once(file, trace, measured, seed) for seed in range(SIMULATIONS)]
    return StepTimes([seconds for run in runs for seconds in run], SIMULATIONS)


def simulated_once(file: Path, trace: Path, measured: ChurnedSwarm, seed: int) -> list[float]:
    """Seconds of the steps that end in as much time as was measured. The churn begins at the end of the warm-up.

    As many steps would be another time, with fewer of the deaths where the simulator is faster.
    """
    trace.write_text("", encoding="utf-8")
    calm = Simulation(load(file), seed, "swarmflow").run()
    began_s = [row.end_s for row in calm.iterations if not row.measured][-1]
    lines = [f"{began_s + at_s:.3f},{what},{number}\n" for at_s, what, number in measured.trace]
    trace.write_text("".join(lines), encoding="utf-8")
    report = Simulation(load(file), seed, "swarmflow").run()
    if report.outcome != "finished":
        raise RuntimeError(f"the simulation ended with: {report.outcome}")
    until_s = began_s + sum(measured.seconds)
    if report.measured[-1].end_s < until_s:
        raise RuntimeError(f"the simulator makes more than {STEPS_RATIO} times as many steps as were measured")
    return [row.seconds for row in report.measured if row.end_s <= until_s]


def scenario(router: str, measured: ChurnedSwarm, links: dict[float, FullLink]) -> str:
    """The same swarm as the simulator is told of it. links: what those of each speed carry."""
    lines = scenario_head(router, MICROBATCHES, STEPS_RATIO * len(measured.seconds), WARMUP)
    lines += ["[churn]", 'trace = "trace.csv"']
    trainer_mbps = TRAINER_MBPS * CARRIED
    lines += ["[trainers]", f"up_mbps = {trainer_mbps:.2f}", f"down_mbps = {trainer_mbps:.2f}"]
    for number in range(PEERS):
        of, link = measured.computed[number % STAGES], links[mbps(number)]
        lines += [*of.peer_lines(number % STAGES, CAPACITY), *link.lines()]
    return "\n".join(lines) + "\n"


def peer_names() -> list[str]:
    """Of the machines of the peers."""
    return [f"peer-{number}" for number in range(PEERS)]


def mbps(number: int) -> float:
    """Of the link of a peer: each stage has one of each speed."""
    return UNLIKE_MBPS[number // STAGES]


def error(real: StepTimes, predicted: StepTimes) -> float:
    """Of the predicted mean."""
    return predicted.mean_s / real.mean_s - 1.0


def contradicts(one: str, other: str, real: dict[str, StepTimes], predicted: dict[str, StepTimes]) -> bool:
    """Whether two routers are in another order, where the intervals of both differences leave no doubt of it."""
    signs = []
    for found in (real, predicted):
        apart_s = found[one].mean_s - found[other].mean_s
        doubt_s = math.hypot(found[one].half_s, found[other].half_s)
        signs.append(0 if abs(apart_s) <= doubt_s else 1 if apart_s > 0 else -1)
    return signs[0] * signs[1] < 0


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
