"""One swarm, and one attack on it after another: what was sent, what became of it, and whether the promises held."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from swarmflow.chaos.attacks.attackers import Attackers
from swarmflow.chaos.attacks.honest import Honest
from swarmflow.chaos.attacks.kinds import AttackKind
from swarmflow.chaos.cast import Cast, ChaosError
from swarmflow.chaos.meters import Meters
from swarmflow.chaos.setup import CHECKPOINT_EVERY, Setup
from swarmflow.chaos.steps import StepLogs
from swarmflow.chaos.watch import Seen, Watch
from swarmflow.local.load_aware import LoadAwareTimeout
from swarmflow.local.swarm import LocalSwarm, kill_at_once

SLOWER_MAX = 1.5  # throughput may fall by a third
STANDSTILL_S = 45.0
SERVE_S = 60.0
WINDOW_STEPS = 8  # of a measurement, at least
WINDOW_S = 1.5
RECOVERY_WINDOWS = 3  # within which a step takes as long as before the attack
SETTLE_STEPS = 3  # after somebody came, and after an attack
TICK_S = 0.05


@dataclass
class AttackResult:
    """What came of one attack."""

    kind: AttackKind
    sent: dict[str, int] = field(default_factory=dict)  # by the attacker, by name
    counted: dict[str, int] = field(default_factory=dict)  # by honest processes, by metric and label
    step_s: dict[str, float] = field(default_factory=dict)  # of a step `before`, `during` and `after` the attack
    ended: list[str] = field(default_factory=list)  # honest processes
    rejoined: list[str] = field(default_factory=list)  # honest processes, once for each time
    grown_bytes: int = 0  # memory of one honest process, at most
    export: Path | None = None  # of the first version that was exported after it
    same: bool | None = None  # whether that has the parameters of the plain loop; None: not compared
    failure: str | None = None  # the promise that was broken

    def slower(self, window: str) -> float:
        """Return by what factor a step takes longer than before; during: than before or after, whichever is more."""
        calm_s = self.step_s["before"]
        if window == "during":
            calm_s = max(calm_s, self.step_s.get("after", 0.0))
        return self.step_s[window] / calm_s

    def judge(self) -> None:
        """Note the first promise that was broken."""
        if self.failure is not None:
            return
        if not self.sent:
            self.failure = "the attacker sent nothing, so nothing was tried"
        elif self.ended:
            self.failure = f"{', '.join(self.ended)} ended"
        elif self.rejoined and not self.kind.restarts:
            self.failure = f"{', '.join(dict.fromkeys(self.rejoined))} had to join again"
        elif self.slower("during") > SLOWER_MAX and not self.kind.restarts:
            self.failure = f"a step took {self.slower('during'):.1f} times as long"
        elif self.slower("after") > SLOWER_MAX:
            self.failure = f"a step took {self.slower('after'):.1f} times as long afterwards"


class Contest:
    """Drives one swarm. Use it inside the swarm's `with` block, and itself as one."""

    def __init__(self, swarm: LocalSwarm, setup: Setup) -> None:
        self._swarm, self._setup = swarm, setup
        self._stage = (setup.stages - 1) // 2  # of the attacker: it has others of its stage, and a stage after it
        self._meters = Meters()
        self._cast = Cast(swarm, self._meters)
        self._honest = Honest(self._cast, self._meters, [])
        self._attackers = Attackers(swarm, self._cast, self._stage)
        self._logs = StepLogs()
        self._watch: Watch | None = None
        self._version = 0
        self._last_s = 0.0  # when the last step was committed, on the monotonic clock

    def __enter__(self) -> Contest:
        self._cast.start(self._setup.trainers, self._setup.peers, self._setup.stages)
        self._honest.names = [process.name for process in self._swarm.processes]
        self._watch = Watch(self._swarm.invite).__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._watch is not None:
            self._watch.__exit__(None, None, None)

    def attack(self, kind: AttackKind) -> AttackResult:
        """Measure before, during and after an attack. A broken promise is a `failure` of the result."""
        result = AttackResult(kind)
        try:
            self._gather(kind)
            result.step_s["before"] = self._step_s(WINDOW_S)
            self._honest.begin(self._present())
            self._strike(kind, result)
        except ChaosError as error:
            result.failure = str(error)
        result.ended, result.rejoined = list(self._honest.ended), list(self._honest.rejoined)
        result.judge()
        return result

    def _gather(self, kind: AttackKind) -> None:
        """Wait until all honest processes and the member serve; one that is not let in again is replaced."""
        if not self._attackers.serves(self._seen):
            self._attackers.dismiss()
        self._until(lambda: self._honest.serve(self._seen), "all to serve")
        self._attackers.prepare(kind)
        self._until(lambda: self._attackers.serves(self._seen), "the attacker to serve")
        self._steps(SETTLE_STEPS)

    def _strike(self, kind: AttackKind, result: AttackResult) -> None:
        self._attackers.begin(kind)
        try:
            if kind.restarts:
                trainers = list(self._swarm.trainers)
                self._meters.read_all()
                kill_at_once(trainers)
                for trainer in trainers:
                    self._cast.again(trainer)
            if kind.newcomer:
                self._honest.names.append(self._cast.another(self._stage).name)
            elif not kind.restarts:
                self._until(self._attackers.has_sent, "the attacker to send something")
            result.step_s["during"] = self._step_s(kind.least_s)
            if kind.newcomer:
                self._until(lambda: self._honest.serve(self._seen), "the newcomer to serve")
        finally:
            result.sent = self._attackers.end(kind)
            result.counted = self._honest.counted()
            result.grown_bytes = self._honest.grown_bytes
        self._steps(SETTLE_STEPS)
        for _ in range(RECOVERY_WINDOWS):
            result.step_s["after"] = self._step_s(WINDOW_S)
            if result.slower("after") <= SLOWER_MAX:
                break
        result.export = self._exported()
        self._until(lambda: self._honest.serve(self._seen), "all to serve")  # who was put out has to join again

    # --- waiting ------------------------------------------------------------------------------------------------------

    @property
    def _seen(self) -> Seen | None:
        return self._watch.seen if self._watch is not None else None

    def _present(self) -> Seen:
        seen = self._seen
        assert seen is not None, "all serve, so they were seen"
        return seen

    def _step_s(self, least_s: float) -> float:
        """Return the seconds that a step takes from now on, over so many seconds and WINDOW_STEPS at least."""
        began_s, first, until_s = self._last_s, self._version, time.monotonic() + least_s
        self._until(lambda: self._version >= first + WINDOW_STEPS and self._last_s >= until_s, "steps", STANDSTILL_S)
        return (self._last_s - began_s) / (self._version - first)

    def _steps(self, count: int) -> None:
        least = self._version + count
        self._until(lambda: self._version >= least, f"{count} steps", STANDSTILL_S)

    def _exported(self) -> Path:
        """Return the first export of a version from now on."""
        version = -(-self._version // CHECKPOINT_EVERY) * CHECKPOINT_EVERY
        path = self._swarm.output / f"step-{version}"
        self._until(path.is_dir, f"the export of version {version}")
        return path

    def _until(self, ready: Callable[[], bool], what: str, timeout_s: float = SERVE_S) -> None:
        """Follow the run until something is so. Raises ChaosError when it takes too long, or the run stands still."""
        timeout = LoadAwareTimeout(timeout_s)
        standstill, version = LoadAwareTimeout(STANDSTILL_S), self._version
        while True:
            self._tick()
            if ready():
                return
            if self._version != version:
                standstill, version = LoadAwareTimeout(STANDSTILL_S), self._version
            if standstill.expired():
                waits = self._seen.waiting_for if self._seen is not None else "nobody leads"
                raise ChaosError(f"no step for {STANDSTILL_S:.0f} s: {waits}")
            if timeout.expired():
                raise ChaosError(f"waited {timeout_s:.0f} s in vain for {what}")
            if self._honest.ended:
                raise ChaosError(f"{', '.join(self._honest.ended)} ended")
            time.sleep(TICK_S)

    def _tick(self) -> None:
        for step in self._logs.read([self._swarm.json_file(trainer.name) for trainer in self._swarm.trainers]):
            if step["version"] > self._version:
                self._version, self._last_s = step["version"], time.monotonic()
        self._honest.look(self._seen)
        self._attackers.look(self._seen)
        if self._watch is not None and self._watch.failure is not None:
            raise self._watch.failure
