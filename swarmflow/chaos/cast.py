"""The processes of one run under chaos: started, found in the status, and replaced."""

from __future__ import annotations

from swarmflow.chaos.meters import Meters
from swarmflow.chaos.schedule import TRAINER, ServingProcess
from swarmflow.chaos.watch import Seen, Sight
from swarmflow.errors import SwarmflowError
from swarmflow.local.swarm import LocalProcess, LocalSwarm
from swarmflow.runtime.transport.identity import load_identity

_METRICS = ("--metrics-port", "0")
_IDENTITY = "identity.key"


class ChaosError(SwarmflowError):
    """A run under chaos stopped, crashed, or did not learn what it should."""


class Cast:
    """Starts processes and identifies them by their libp2p names."""

    def __init__(self, swarm: LocalSwarm, meters: Meters) -> None:
        self.swarm = swarm
        self._meters = meters
        self._names: dict[str, str] = {}

    def start(self, trainers: int, peers: int, stages: int) -> None:
        """Start all processes, the peers spread evenly; a trainer beside the first may lead after its death."""
        for number in range(trainers):
            self._follow(self.swarm.start_trainer(*_METRICS, beside=number > 0))
        for number in range(peers):
            self._follow(self.swarm.start_peer(*_METRICS, stage=number % stages))

    def again(self, process: LocalProcess) -> LocalProcess:
        """Start the same command again, with the same state folder."""
        return self._follow(self.swarm.start_again(process))

    def another(self, stage: int | str = "auto") -> LocalProcess:
        """Start a peer that the run does not know. stage: that it asks for; auto: the leader grants it any."""
        return self._follow(self.swarm.start_peer(*_METRICS, stage=stage))

    def present(self, name: str) -> LocalProcess:
        """Return the current life of a process."""
        return next(process for process in self.swarm.processes if process.name == name)

    def sight(self, seen: Seen | None, process: LocalProcess) -> Sight | None:
        """Return the leader's view of a process, if it knows it."""
        libp2p_name = self.libp2p_name(process.name)
        return None if seen is None or libp2p_name is None else seen.processes.get(libp2p_name)

    def serving(self, seen: Seen) -> list[ServingProcess]:
        """Return the serving processes, by their names in this run."""
        found: list[ServingProcess] = []
        for process in self.swarm.processes:
            sight = self.sight(seen, process)
            if sight is not None and process.exit_code is None and sight.phase in ("serving", "leading"):
                found.append(ServingProcess(process.name, sight.stage))
        return found

    def is_trainer(self, process: LocalProcess) -> bool:
        """Whether a process is a trainer."""
        return process in self.swarm.trainers

    def _follow(self, process: LocalProcess) -> LocalProcess:
        self._meters.follow(process)
        return process

    def libp2p_name(self, name: str) -> str | None:
        """Return its libp2p name; None where it has only just been started."""
        if name not in self._names:
            path = self.swarm.state_folder(name) / _IDENTITY
            if not path.is_file():
                return None
            self._names[name] = load_identity(path).name
        return self._names[name]


def role_of(stage: int) -> str:
    """Return the role of the processes of a stage, for people."""
    return "trainer" if stage == TRAINER else f"stage {stage}"
