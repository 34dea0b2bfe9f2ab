"""Runs a scenario to its end, and measures each iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from swarmflow.core.protocol.messages import StepResult
from swarmflow.core.protocol.types import Plan, ProcessId, tied_ends
from swarmflow.errors import ConfigError
from swarmflow.planning.stage_choice import plan_stages
from swarmflow.policies import policy_named
from swarmflow.policies.swarmflow import Swarmflow
from swarmflow.simulator.churn import ScenarioChurn
from swarmflow.simulator.garbage import searched_rarely
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.report import MINUTE_S, DeviceUse, Iteration, SimulationReport
from swarmflow.simulator.scenario import Scenario
from swarmflow.simulator.scenario_hardware import ScenarioHardware, capacities_of, trainer_name
from swarmflow.simulator.settings import Environment, Settings
from swarmflow.simulator.swarm import PeerLife, Swarm

Progress = Callable[[int, float], None]  # (iterations, virtual seconds)


@dataclass(frozen=True, slots=True)
class _Totals:
    """Totals of the swarm since the beginning, read at the end of an iteration (fields: see Iteration, Meter)."""

    now_s: float = 0.0
    useful_s: float = 0.0
    wasted_s: float = 0.0
    twice_s: float = 0.0
    lost_s: float = 0.0
    unlearnt: float = 0.0
    transit_s: float = 0.0
    busy_s: float = 0.0
    alive_s: float = 0.0  # of all peers together, like busy_s
    deaths: int = 0
    joins: int = 0
    moves: int = 0
    restarts: int = 0
    messages: int = 0
    wire_bytes: int = 0


@dataclass(slots=True)
class Simulation:
    """One scenario under one seed and one policy.

    Raises ConfigError for an unknown policy.
    """

    scenario: Scenario
    seed: int
    policy: str
    trace: Callable[[str], None] | None = None  # called with every line of the trace
    progress: Progress | None = None  # called after each iteration: how many there are, and the virtual time
    world: Swarm = field(init=False)  # all simulated processes, their clock and network
    churn: ScenarioChurn = field(init=False)
    _hardware: ScenarioHardware = field(init=False)
    _rows: list[Iteration] = field(init=False, default_factory=list)
    _last: _Totals = field(init=False, default_factory=_Totals)  # at the end of the last iteration
    # Seconds that each peer had computed, at the end of the warm-up and of the last iteration.
    _warmup_busy_s: dict[ProcessId, float] = field(init=False, default_factory=dict)
    _last_busy_s: dict[ProcessId, float] = field(init=False, default_factory=dict)
    _measured_from_s: float = field(init=False, default=0.0)  # virtual time of the end of the warm-up
    _recorded: set[int] = field(init=False, default_factory=set)  # steps whose result has been recorded
    _notes: tuple[str, ...] = field(init=False, default=())  # lines for the user

    def __post_init__(self) -> None:
        policy, run, model = policy_named(self.policy), self.scenario.run, self.scenario.model
        shared = tied_ends(model.stages) if model.tied_parameters else ()
        boundary_bytes = int(model.activation_bytes / model.codec_ratio)
        how = shared, model.cost_factors, run.router, boundary_bytes, model.delay, run.timeouts
        plan = Plan(model.stages, model.microbatches, *how, model.reduced_bytes, run.slowest_ratio)
        if run.slowest_ratio and not isinstance(policy, Swarmflow):
            raise ConfigError(
                f"run.codec = {run.codec!r}: {policy.name} has no leader that decides it; model.codec_ratio is that "
                "of a fixed codec"
            )
        if not isinstance(model.stage_memory_bytes, int) and not isinstance(policy, Swarmflow):
            raise ConfigError(
                f"model.stage_memory_bytes: {policy.name} places peers whatever their memory; give one number for all"
            )
        fitting = [any(capacities_of(self.scenario, self.seed, n)) for n in range(self.scenario.peer_count)]
        settings = Settings(
            plan,
            steps=run.iterations + run.warmup,
            checkpoint_every=run.checkpoint_every,
            rebalance_s=run.rebalance_s,
            timeout_s=run.timeout_s,
            peers_first=sum(fitting),
            journal_bytes_max=run.journal_bytes_max,
            recompute=run.recompute,
            relays=run.relays,
            planner=plan_stages if run.placement == "planned" else None,
        )
        self.world = policy.swarm(settings, self.seed, self._make_environment)
        self.world.trace, self.world.on_result = self.trace, self._result
        self.churn = ScenarioChurn(self.world, self._hardware, Random(self.seed + 1))

    def _make_environment(self, random: Random) -> Environment:
        self._hardware = ScenarioHardware(self.scenario, self.seed, random)
        return Environment(self._hardware.network, self._hardware)

    def run(self) -> SimulationReport:
        """Run the scenario to its end, or to the first violated invariant."""
        run, world = self.scenario.run, self.world
        names = [self._hardware.add_peer(number) for number in range(self.scenario.peer_count)]
        fitting = [name for name in names if self._hardware.fits(name)]
        if len(fitting) < len(names):
            need = f"{self.scenario.model.least_memory_bytes:,} bytes of a stage with one microbatch"
            self._notes = (f"{len(names) - len(fitting)} of {len(names)} peers have no memory for the {need}",)
            later = sum(arrival.joins for arrival in self.scenario.arrivals)
            if len(fitting) + later < self.scenario.model.stages:
                return self._report(f"cannot begin: {self.scenario.model.stages} stages, {len(fitting)} peers", ())
        for number in range(self.scenario.trainers.count):
            world.start_trainer(trainer_name(number), lead=number == 0)
        for name in fitting:
            world.start_peer(name, self._hardware.profiles[name].stage)
        self.churn.begin()
        violations: tuple[str, ...] = ()
        limit_s = min(run.limit_s, run.duration_s or run.limit_s)
        try:
            with searched_rarely():
                done = world.clock.run(self._is_over, limit_s)
        except InvariantViolated as violation:
            done, violations = False, (str(violation),)
        outcome = "finished" if done else "violated" if violations else self._unfinished_outcome(limit_s)
        return self._report(outcome, violations)

    def _is_over(self) -> bool:
        return len(self._rows) >= self.world.settings.steps or self.world.ended

    def _unfinished_outcome(self, limit_s: float) -> str:
        """Return the outcome of a run that has neither finished nor violated an invariant."""
        if limit_s == self.scenario.run.duration_s:
            return "duration over"
        return f"stands still: {self.world.waiting_for}"

    # --- measuring ----------------------------------------------------------------------------------------------------

    def _result(self, result: StepResult) -> None:
        """Record an iteration: it ends when the first trainer receives the result of the step."""
        if result.step in self._recorded:
            return
        self._recorded.add(result.step)
        now, then = self._totals(), self._last
        self._last = now
        busiest_s, busiest_stage = self._busiest()
        shares = self.world.clock.cause.shares(busiest_s, now.now_s - then.now_s)
        self.world.clock.mark()
        measured = len(self._rows) >= self.scenario.run.warmup
        seconds, alive_s = now.now_s - then.now_s, now.alive_s - then.alive_s
        per_minute = result.microbatches * MINUTE_S / seconds if seconds > 0 else 0.0
        row = Iteration(
            number=result.step,
            measured=measured,
            end_s=now.now_s,
            seconds=seconds,
            minutes_a_microbatch=seconds / MINUTE_S / result.microbatches,
            microbatches=result.microbatches,
            microbatches_a_minute=per_minute,
            communication_s=(now.transit_s - then.transit_s) / result.microbatches,
            useful_s=now.useful_s - then.useful_s,
            wasted_s=now.wasted_s - then.wasted_s,
            twice_s=now.twice_s - then.twice_s,
            lost_s=now.lost_s - then.lost_s,
            unlearnt=now.unlearnt - then.unlearnt,
            utilisation=(now.busy_s - then.busy_s) / alive_s if alive_s > 0 else 0.0,
            peers=sum(result.peers),
            deaths=now.deaths - then.deaths,
            joins=now.joins - then.joins,
            moves=now.moves - then.moves,
            retries=result.retries,
            restarts=now.restarts - then.restarts,
            messages=now.messages - then.messages,
            wire_bytes=now.wire_bytes - then.wire_bytes,
            busiest_stage=busiest_stage,
            **shares._asdict(),
        )
        self._rows.append(row)
        if len(self._rows) == self.scenario.run.warmup:
            self._begin_measuring()
        if self.progress is not None:
            self.progress(len(self._rows), now.now_s)
        self.churn.iteration()

    def _busiest(self) -> tuple[float, int]:
        """Return the seconds that the busiest peer has computed since the last call, and its stage."""
        lives = [self.world.life(process) for process in self.world.peers()]
        computed = [(life.busy_s - self._last_busy_s.get(life.process, 0.0), life.stage) for life in lives]
        self._last_busy_s = {life.process: life.busy_s for life in lives}
        return max(computed, default=(0.0, -1))

    def _begin_measuring(self) -> None:
        """Leave the warm-up out of the report: its computing, its messages and its bytes."""
        world = self.world
        self._measured_from_s = world.clock.now_s
        self._warmup_busy_s = {process: world.life(process).busy_s for process in world.peers()}
        world.meter.messages.clear()
        world.meter.wire_bytes.clear()
        self._last = self._totals()

    def _totals(self) -> _Totals:
        world, meter = self.world, self.world.meter
        uses = [self._device_use(world.life(process), 0.0, {}) for process in world.peers()]
        return _Totals(
            world.clock.now_s,
            meter.useful_s,
            meter.wasted_s,
            meter.twice_s,
            meter.lost_s,
            meter.unlearnt,
            meter.transit_s,
            sum(use.busy_s for use in uses),
            sum(use.seconds for use in uses),
            self.churn.deaths,
            self.churn.joins,
            world.counts["moves"],
            world.counts["steps_restarted"] + world.counts["rollbacks"],
            meter.messages.total(),
            meter.wire_bytes.total(),
        )

    def _device_use(self, life: PeerLife, since_s: float, busy_s_before: dict[ProcessId, float]) -> DeviceUse:
        """Return the use of a peer since a time, at which it had computed `busy_s_before` (0 where it is missing)."""
        process = life.process
        seconds = max(0.0, min(life.died_s, self.world.clock.now_s) - max(life.began_s, since_s))
        busy_s = life.busy_s - busy_s_before.get(process, 0.0)
        return DeviceUse(f"{process.name}.{process.incarnation}", life.stage, seconds, busy_s)

    def _report(self, outcome: str, violations: tuple[str, ...]) -> SimulationReport:
        world = self.world
        lives = [world.life(process) for process in world.peers()]
        uses = [
            self._device_use(life, self._measured_from_s, self._warmup_busy_s)
            for life in lives
            if life.died_s > self._measured_from_s
        ]
        meter = world.meter
        return SimulationReport(
            self.scenario.run.name,
            self.policy,
            self.seed,
            outcome,
            violations,
            world.clock.now_s,
            world.clock.happened,
            tuple(self._rows),
            tuple(uses),
            dict(sorted(meter.messages.items())),
            dict(sorted(meter.wire_bytes.items())),
            sum(use.seconds for use in uses),
            dict(sorted(world.counts.items())),
            self._notes,
        )
