"""One fault: from the moment when it is due until its victim, or a replacement, serves again."""

from __future__ import annotations

import signal
from collections.abc import Callable

from swarmflow.chaos.cast import Cast, ChaosError, role_of
from swarmflow.chaos.diary import Diary
from swarmflow.chaos.meters import Meters
from swarmflow.chaos.sabotage import block, damage, fill, resume, stall, unblock
from swarmflow.chaos.schedule import Fault
from swarmflow.chaos.spoiling import What, forgive, spoil
from swarmflow.chaos.watch import Seen

DRAIN_S = 90.0
SERVE_S = 240.0
_WHAT: tuple[What, ...] = ("activation", "gradient", "sum")

# The last line in the log of a process that has not found the run, as it may while a leader is being elected: it is
# started again.
_IN_VAIN = ("nobody answers at", "does not answer", "has written no invite")


class Trouble:
    """One fault and its consequences. Call `tick` often, until `over`."""

    def __init__(self, fault: Fault, opened_s: float, step_s: float, cast: Cast, meters: Meters, diary: Diary) -> None:
        self.fault = fault
        self.over = False
        self.process = cast.present(fault.victim.name)
        self._cast, self._meters, self._diary = cast, meters, diary
        self._due_s = opened_s + fault.moment * step_s
        self._again_s = fault.again_s
        self._since_s = self._due_s
        self._former = ""
        self._state: Callable[[float, Seen | None], None] = self._waiting

    def __str__(self) -> str:
        return f"{self.fault.kind} of {self.fault.victim.name} ({self._state.__name__.strip('_')} {self.process.name})"

    def tick(self, now: float, seen: Seen | None) -> None:
        """Act, if it is time. Raises ChaosError when a process does not do what it should."""
        self._state(now, seen)

    # --- states -------------------------------------------------------------------------------------------------------

    def _waiting(self, now: float, seen: Seen | None) -> None:
        if now < self._due_s:
            return
        if self.process.exit_code is not None:
            self.over = True  # the run was over before
            return
        match self.fault.kind:
            case "kill":
                self._kill(now, seen)
                self._replace()
            case "stop":
                self._freeze(now, seen)
            case "drain":
                self._drain(now, seen)
            case "corrupt":
                self._corrupt(now, seen)
            case _:
                self._harm(now, seen)

    def _frozen(self, now: float, seen: Seen | None) -> None:
        if now < self._since_s + self.fault.pause_s:
            return
        self.process.send(signal.SIGCONT)
        self._meters.freeze(self.process, False)
        self._diary.note(f"SIGCONT to {self.process.name}")
        self._since_s, self._state = now, self._coming

    def _harmed(self, now: float, seen: Seen | None) -> None:
        if self.process.exit_code is None and now < self._since_s + self.fault.pause_s:
            return
        self._heal()
        self._diary.note(f"{self.process.name} is well again")
        self._since_s, self._state = now, self._coming
        if self.fault.kind == "spoil":
            self.over = True  # a peer that was excluded for its values may serve again much later

    def _draining(self, now: float, seen: Seen | None) -> None:
        code = self.process.exit_code
        if code is None:
            self._meters.read(self.process)  # its last values should be known when it is gone
            if now > self._since_s + DRAIN_S:
                raise ChaosError(f"{self.process.name} was told to leave {DRAIN_S:.0f} s ago and is still there")
            return
        if code:
            raise ChaosError(f"{self.process.name} was told to leave and ended with exit code {code}")
        self._diary.note(f"{self.process.name} has left")
        self._since_s = now
        self._replace()

    def _coming(self, now: float, seen: Seen | None) -> None:
        """Wait until it serves. A replacement may be killed once more as it loads its stage."""
        if self.process.exit_code is not None:
            self._see_why_it_ended()
        elif now > self._since_s + SERVE_S:
            raise ChaosError(f"{self.process.name} does not serve {SERVE_S:.0f} s after the {self.fault.kind}")
        sight = self._cast.sight(seen, self.process)
        if seen is None or seen.at_s < self._since_s or sight is None or sight.id == self._former:
            return
        if self._again_s is not None and sight.phase == "loading":
            self._due_s, self._again_s, self._state = now + self._again_s, None, self._waiting_again
        elif sight.phase in ("serving", "leading"):
            self._diary.note(f"{self.process.name} serves again ({role_of(sight.stage)})")
            self.over = True

    def _waiting_again(self, now: float, seen: Seen | None) -> None:
        if now >= self._due_s and self.process.exit_code is None:
            self._kill(now, seen, " as it loads")
            self.process = self._cast.again(self.process)
            self._state = self._coming
        elif self.process.exit_code is not None:
            self._state = self._coming

    # --- blows --------------------------------------------------------------------------------------------------------

    def _kill(self, now: float, seen: Seen | None, when: str = "") -> None:
        self._strike(now, seen, f"SIGKILL to {self.process.name}{when}", "kills")
        self._meters.read(self.process, killed=True)
        self.process.kill()

    def _freeze(self, now: float, seen: Seen | None) -> None:
        self._strike(now, seen, f"SIGSTOP to {self.process.name} for {self.fault.pause_s:.1f} s", "stops")
        self._former = ""  # it may stay who it is
        self._meters.freeze(self.process, True)
        self.process.send(signal.SIGSTOP)
        self._state = self._frozen

    def _drain(self, now: float, seen: Seen | None) -> None:
        self._strike(now, seen, f"SIGTERM to {self.process.name}", "drains")
        self.process.send(signal.SIGTERM)
        self._state = self._draining

    def _corrupt(self, now: float, seen: Seen | None) -> None:
        """Damage a file and start the process again, which checks its files as it starts."""
        path = damage(self._cast.swarm.state_folder(self.process.name), self.fault.place)
        what = f"a byte of {path.parent.name}/{path.name} is flipped" if path is not None else "it has no file yet"
        self._strike(now, seen, f"SIGKILL to {self.process.name}, {what}", "corruptions")
        self._meters.read(self.process, killed=True)
        self.process.kill()
        self._replace()

    def _harm(self, now: float, seen: Seen | None) -> None:
        folder, seconds = self._cast.swarm.state_folder(self.process.name), f"for {self.fault.pause_s:.1f} s"
        match self.fault.kind:
            case "block":
                other = self._other()
                self._strike(now, seen, f"{self.process.name} reaches {other} no more {seconds}", "blocks")
                block(folder, [name for name in (self._cast.libp2p_name(other),) if name is not None])
            case "fill":
                self._strike(now, seen, f"the disk of {self.process.name} is full {seconds}", "full_disks")
                fill(self.process.pid, full=True)
            case "stall":
                self._strike(now, seen, f"{self.process.name} forms no microbatch {seconds}", "stalls")
                stall(folder)
            case "spoil":
                what = _WHAT[int(self.fault.place * len(_WHAT))]
                self._strike(now, seen, f"the {what} of {self.process.name} is not finite {seconds}", "spoils")
                spoil(folder, what)
        self._former = ""  # it may stay who it is
        self._state = self._harmed

    def _heal(self) -> None:
        folder = self._cast.swarm.state_folder(self.process.name)
        unblock(folder)
        resume(folder)
        forgive(folder)
        if self.fault.kind == "fill" and self.process.exit_code is None:
            fill(self.process.pid, full=False)

    def _other(self) -> str:
        others = [process.name for process in self._cast.swarm.processes if process.name != self.process.name]
        return others[int(self.fault.place * len(others))]

    def _strike(self, now: float, seen: Seen | None, what: str, counts_as: str) -> None:
        sight = self._cast.sight(seen, self.process)
        self._former = sight.id if sight is not None else ""
        self._since_s = now
        names = [counts_as]
        if self._cast.is_trainer(self.process):
            names.append("trainers_hit")
            names += ["leaders_hit"] if sight is not None and sight.phase == "leading" else []
        doing = seen.waiting_for if seen is not None else "nobody leads"
        self._diary.blow(f"{what} ({role_of(self.fault.victim.stage)}; {doing})", *names)

    def _replace(self) -> None:
        self.process = self._cast.another() if self.fault.fresh else self._cast.again(self.process)
        self._diary.note(f"{self.process.name} is started, life {self.process.life}")
        self._state = self._coming

    def _see_why_it_ended(self) -> None:
        """Handle a process that has ended: the run may be over, or it has found no leader and is started again."""
        if self.process.exit_code == 0:
            self.over = True
            return
        lines = self.process.log.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
        if self.process.exit_code != 1 or not any(text in lines[-1] for text in _IN_VAIN):
            raise ChaosError(f"{self.process.name} ended with exit code {self.process.exit_code}: {lines[-1]}")
        self._diary.counts["vain_starts"] += 1
        self._diary.note(f"{self.process.name} found no run; it is started again")
        self.process = self._cast.again(self.process)
