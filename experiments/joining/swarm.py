"""Table IV in a simulated swarm of swarmflow's own machines: its leader places the candidates.

The data node of GWTF holds the first and the last layers. Here it is a trainer and two pairs of machines in one place,
which serve a stage before the relays' and one after them. Replicating these stages takes a long all-reduce, so that no
candidate is put there. A link of cost c carries a boundary tensor in c * UNIT_S seconds, and nothing else limits it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from experiments.joining.drawing import PlacingSwarm
from swarmflow.core.protocol.types import Plan, ProcessId
from swarmflow.policies.swarmflow import Swarmflow
from swarmflow.simulator.distributions import Constant
from swarmflow.simulator.scenario import ChurnPart, ModelPart, NetworkPart, PeersPart, RunPart, Scenario, TrainersPart
from swarmflow.simulator.scenario_hardware import BYTES_PER_MBIT, ScenarioHardware, trainer_name
from swarmflow.simulator.settings import Environment, Settings
from swarmflow.simulator.world import World

UNIT_S = 0.004  # of a boundary tensor, for each unit of a link's cost
BOUNDARY_BYTES = 4 << 20
FORWARD_S = 0.0005
DATA_PEERS = 2  # of each of the data node's two stages
DATA_MBPS = 10_000.0  # between the machines of the data node
DATA_PARAMETERS = 1 << 28  # of each of its two stages
RELAY_PARAMETERS = 1 << 14
DATA_CAPACITY = 1024
SETTLED_STEPS = 2  # after which the links of a peer that has joined are measured
LIMIT_S = 3600.0  # for a candidate, in virtual time


@dataclass(slots=True)
class JoiningSwarm:
    """A swarm of relays, and of candidates that join it one after the other."""

    swarm: PlacingSwarm
    seed: int
    router: str = "shortest"
    hardware: ScenarioHardware = field(init=False)
    world: World = field(init=False)

    def __post_init__(self) -> None:
        scenario = _scenario(self.swarm)
        model, begin = scenario.model, 2 * DATA_PEERS + len(self._relays)
        plan = Plan(
            model.stages,
            model.microbatches,
            router=self.router,
            boundary_bytes=model.activation_bytes,
            timeouts=scenario.run.timeouts,
            reduced_bytes=model.reduced_bytes,
        )
        settings = Settings(plan, steps=1 << 20, peers_first=begin, journal_bytes_max=1 << 62, recompute=False)

        def environment(random: Random) -> Environment:
            self.hardware = ScenarioHardware(scenario, self.seed, random)
            return Environment(self.hardware.network, self.hardware)

        self.world = Swarmflow().swarm(settings, self.seed, environment)
        self.world.start_trainer(trainer_name(0), lead=True)
        for number in range(begin):
            name = self.hardware.add_peer(number)
            self.world.start_peer(name, self.hardware.profiles[name].stage)
        self._settle()

    @property
    def _relays(self) -> list[int]:
        return [node for stage in self.swarm.instance.stages for node in stage]

    def place(self, number: int) -> int:
        """Let the next candidate join; return the stage of the instance, -1 where it was put beside the data node."""
        name = self.hardware.add_peer(2 * DATA_PEERS + len(self._relays) + number)
        process = self.world.start_peer(name)
        if process is None or not self.world.clock.run(lambda: self._serves(process), self._limit_s):
            raise RuntimeError(f"candidate {number} is not let in: {self.world.waiting_for}")
        self._settle()
        stage = self.world.life(process).stage - 1
        return stage if 0 <= stage < len(self.swarm.instance.stages) else -1

    @property
    def _limit_s(self) -> float:
        return self.world.clock.now_s + LIMIT_S

    def _serves(self, process: ProcessId) -> bool:
        return self.world.life(process).stage >= 0

    def _settle(self) -> None:
        """Go on until a few more steps are done."""
        steps = len(self.world.results) + SETTLED_STEPS
        if not self.world.clock.run(lambda: len(self.world.results) >= steps, self._limit_s):
            raise RuntimeError(f"the swarm stands still: {self.world.waiting_for}")


def _scenario(swarm: PlacingSwarm) -> Scenario:
    """Return the machines: the trainer, those of the data node, the relays by stage, and the candidates."""
    instance = swarm.instance
    stages, last = len(instance.stages), len(instance.stages) + 1
    relays = [(node, at) for at, stage in enumerate(instance.stages, 1) for node in stage]
    forward = Constant(FORWARD_S)
    peers = [
        PeersPart(count=DATA_PEERS, stage=stage, capacity=Constant(DATA_CAPACITY), forward_s=forward)
        for stage in (0, last)
    ]
    for node, at in [*relays, *((node, -1) for node in swarm.candidates)]:
        peers.append(PeersPart(stage=at, capacity=Constant(swarm.capacity[node]), forward_s=forward))
    nodes = [0] * (1 + 2 * DATA_PEERS) + [node for node, _ in relays] + list(swarm.candidates)
    model = ModelPart(
        stages=stages + 2,
        microbatches=instance.flow,
        activation_bytes=BOUNDARY_BYTES,
        parameters=(DATA_PARAMETERS, *[RELAY_PARAMETERS] * stages, DATA_PARAMETERS),
    )
    tensor_mbit = BOUNDARY_BYTES / BYTES_PER_MBIT
    rates = tuple(
        tuple(DATA_MBPS if one == other else tensor_mbit / (instance.cost[one][other] * UNIT_S) for other in nodes)
        for one in nodes
    )
    run, network = RunPart(router="shortest", rebalance_s=0.0), NetworkPart()
    return Scenario(
        run=run,
        model=model,
        trainers=TrainersPart(),
        network=network,
        churn=ChurnPart(),
        peers=tuple(peers),
        latency=None,
        bandwidth=rates,
        arrivals=(),
    )
