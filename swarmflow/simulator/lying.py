"""Members that lie: beside what their machines do, they send what they could truthfully send in another situation.

A liar alters a message of its machine, sends one of its own accord, or withholds one from some. All that it sends is
well-formed: `hostile` sends what cannot be true. It signs with its own key, and shows what others have signed about
something else. Up to a fifth of the voters lie, and any number of peers without a certificate.
"""

from __future__ import annotations

import re
import typing
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from random import Random
from typing import Any

from swarmflow.core.commit.reduce import PIECE_ELEMENTS
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.inbound import INBOUND
from swarmflow.core.pipeline.hop import Hop
from swarmflow.core.protocol.actions import Send
from swarmflow.core.protocol.messages import (
    FROM_TRAINERS,
    TO_LEADER,
    Cancel,
    Deposed,
    Done,
    ElectionReport,
    Heartbeat,
    Join,
    Left,
    LoadFailed,
    Message,
    Negotiate,
    Prepared,
    Ready,
    ReducePart,
    ReduceSum,
    RelayTensor,
    StateRoot,
    Suspect,
)
from swarmflow.core.protocol.messages.checks import BODIES_MAX, checks_of
from swarmflow.core.protocol.types import Microbatch, ProcessId, Ref
from swarmflow.simulator.arithmetic import FORGED, GIVEN, ForgedTensor, Sum
from swarmflow.simulator.host import Host
from swarmflow.simulator.hostile import ForgedFlows, Mint
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.lying_hops import TENSORS, Handed, HopOffer, HopReport, hop_report, offer
from swarmflow.simulator.world import World, alive_processes

SAMPLES = 16  # of each type of message, from which a liar takes what it sends at another time
# Who is kept out is guilty: of disputes with more voters than may lie, of its own signature, or of what it alone says.
# No honest process is where nothing else goes wrong. It may have to join again: of a pair in a dispute each in turn.
_GONE = re.compile(r" is gone: .*?(?P<kept_out>: put out for \d+ s|; it may serve again in \d+ s)?$")
VOTERS_SHARE = 5  # one of so many voters may lie
FAVOURITES_SHARE = 0.5  # of what liars send of their own accord: of the seed's favourite types
REPORTS_SHARE = 0.5  # of the liars' reports to candidates that are altered
OWN_FIELDS = frozenset(("join", "member", "term"))  # of a report: what it says of its sender is another lie than this
STALE_SHARE = 0.5  # of the fields altered in a report: they are of another report, with its signatures
_FIXED = frozenset(("proof", "sent"))
_MADE_BY_MACHINES: frozenset[type] = frozenset((Join, ElectionReport, Negotiate))  # made up, they would be refused
LIES: tuple[type, ...] = tuple(
    kind
    for kind in typing.get_args(Message)
    if kind not in FROM_TRAINERS | _MADE_BY_MACHINES and (kind in TO_LEADER or kind in INBOUND or kind is Deposed)
)


@dataclass(frozen=True, slots=True)
class Habit:
    """How the liars of a seed lie."""

    gap_s: float  # mean, between two messages that a liar sends of its own accord
    altered: float  # share of what its machine sends
    withheld: float  # share of the same
    favourites: tuple[type, ...]  # types of half of the messages of its own accord
    faithful: float  # share of the messages of its own accord that fit the place and the epoch of their sender

    @classmethod
    def of(cls, draw: Random) -> Habit:
        """Return that of a seed."""
        return cls(
            draw.choice((0.1, 0.3, 1.0, 4.0)),
            draw.choice((0.0, 0.02, 0.1)),
            draw.choice((0.0, 0.0, 0.01)),
            tuple(draw.sample(LIES, draw.choice((1, 2, 4)))),
            draw.choice((0.7, 0.95)),
        )


@dataclass(slots=True)
class Liars:
    """Has some of a world's peers lie, from the beginning to the end."""

    world: World
    random: Random
    habit: Habit
    sent: Counter[str] = field(init=False, default_factory=Counter)  # lies, by type
    handed: Handed = field(init=False, default_factory=Handed)
    flows: ForgedFlows = field(init=False)
    _samples: dict[type, deque[Send]] = field(init=False, default_factory=dict)  # what peers have sent
    _withheld: Counter[tuple[ProcessId, ProcessId]] = field(init=False, default_factory=Counter)
    _victims: dict[str, str] = field(init=False, default_factory=dict)  # whom a liar likes to accuse

    def __post_init__(self) -> None:
        self.flows = ForgedFlows(self.world, self.random)

    @classmethod
    def among(cls, world: World, draw: Random) -> Liars:
        """Choose the liars of a world that has just begun, and have them begin."""
        names = sorted({process.name for process in world.alive_peers()})
        draw.shuffle(names)
        certified = [name for name in names if world.role(ProcessId(name, 0)) is not None]
        strangers = [name for name in names if name not in certified]
        few = (len(certified) + len(world.trainers)) // VOTERS_SHARE
        world.liars |= set(certified[:few]) | set(strangers[: draw.randint(1, max(1, len(strangers)))])
        liars = cls(world, draw, Habit.of(draw))
        world.transport.liars = liars
        for name in sorted(world.liars):
            liars._next(name)
        return liars

    def send(self, here: Host, action: Send) -> None:
        """Send what a process says instead of what its machine does."""
        draw, message, kind = self.random, action.message, type(action.message)
        carry = self.world.transport.carry
        if isinstance(here.machine, PeerMachine):
            self._samples.setdefault(kind, deque(maxlen=SAMPLES)).append(action)
        self.handed.note(here.process, action, trainer=here.process in self.world.trainers)
        if not self._lies(here.process):
            return carry(here, action)
        pair = here.process, action.to
        if draw.random() < self.habit.withheld:
            self._withheld[pair] += not action.bodies
            return None
        if isinstance(message, Heartbeat):  # it counts what it has sent, and no lie shows
            action = replace(action, message=replace(message, sent=max(0, message.sent - self._withheld[pair])))
        altered = draw.random() < (REPORTS_SHARE if kind is ElectionReport else self.habit.altered)
        if not altered or kind is Join:
            return carry(here, action)
        message = self._altered(here, action.message)
        self.sent[kind.__name__] += 1
        if kind in (ReducePart, ReduceSum, *TENSORS):  # without a body nothing would show that it is a lie
            return self._carry(here, self._with_bodies(here, Send(action.to, message)))
        return carry(here, replace(action, message=message))

    def check_calm(self) -> None:
        """Check what lies did to honest processes where nothing else went wrong. Raises InvariantViolated."""
        liars, gone = self.world.liars, Counter[bool]()
        for line in self.world.log:
            if (found := _GONE.search(line)) is None:
                continue
            honest = line[: found.start()].split()[-1].rpartition(".")[0] not in liars
            gone[honest] += 1
            if honest and found["kept_out"]:
                raise InvariantViolated(f"seed {self.world.seed}: an honest process is kept out: {line.strip()}")
        if gone[True] > gone[False] + len(liars):
            raise InvariantViolated(f"seed {self.world.seed}: {gone[True]} lives of honest processes ended by lies")

    # --- when -------------------------------------------------------------------------------------------------------

    def _lies(self, process: ProcessId) -> bool:
        """Return whether a process lies now: no more than a fifth of the voters alive do."""
        world = self.world
        if process.name not in world.liars:
            return False
        if world.role(process) is None:
            return True
        peers = [peer for peer in world.alive_peers() if world.role(peer) is not None]
        voters = len(peers) + len([trainer for trainer in world.trainers if world.alive(trainer)])
        lying = [peer for peer in peers if peer.name in world.liars]
        return process in lying[: voters // VOTERS_SHARE]

    def _next(self, name: str) -> None:
        self.world.clock.after(self.random.expovariate(1 / self.habit.gap_s), partial(self._strike, name))

    def _strike(self, name: str) -> None:
        world = self.world
        if world.ended:
            return
        process = world.launcher.latest.get(name)
        host = world.hosts.get(process) if process is not None else None
        if host is not None and host.alive and host.frozen_until_s <= world.clock.now_s and self._lies(host.process):
            self._send(host)
        self._next(name)

    def _send(self, here: Host) -> None:
        """Send something of its own accord."""
        draw, machine = self.random, here.machine
        if self.flows.drawn and (forged := self.flows.next(self._mint(here), here.process)) is not None:
            return self._say(here, Send(*forged))
        kind = draw.choice(self.habit.favourites if draw.random() < FAVOURITES_SHARE else LIES)
        receiver = self._receiver(here, kind)
        samples = self._samples.get(kind)
        if receiver is None or receiver == here.process or not isinstance(machine, PeerMachine):
            return None
        if samples and draw.random() < 0.5:
            message = draw.choice(list(samples)).message
            message = self._altered(here, message) if draw.random() < 0.5 else message
        else:
            message = self._mint(here).message(kind, 0.0)
        if draw.random() < self.habit.faithful:
            message = self._fitting(here, message, receiver)
        if checks_of(self.world.settings.plan).wrong(message, 0, self.world.role(here.process)) is not None:
            return None
        return self._say(here, self._with_bodies(here, Send(receiver, message)))

    def _say(self, here: Host, action: Send) -> None:
        self.sent[type(action.message).__name__] += 1
        [counted] = here.machine.counter.sent([action])
        assert isinstance(counted, Send)
        self._carry(here, counted)

    # --- what -------------------------------------------------------------------------------------------------------

    def _mint(self, here: Host) -> Mint:
        machine = here.machine
        epoch, known = machine.epoch, alive_processes(self.world)
        return Mint(self.random, self.world.settings.plan, known, [epoch, epoch, epoch, epoch.following])

    def _altered(self, here: Host, message: Any) -> Any:  # noqa: ANN401
        """Return a message with another value in one of its fields."""
        kind, mint = type(message), self._mint(here)
        fixed = _FIXED | (OWN_FIELDS if kind is ElectionReport else frozenset())
        names = [each.name for each in fields(kind) if each.name not in fixed]
        if not names:
            return message
        name, samples = self.random.choice(names), self._samples.get(kind)
        other = mint.message(kind, 0.0)
        if kind is ElectionReport and samples and self.random.random() < STALE_SHARE:
            other = self.random.choice(list(samples)).message
        made = replace(message, **{name: getattr(other, name)})
        wrong = checks_of(self.world.settings.plan).wrong(made, 0, self.world.role(here.process))
        return message if wrong is not None else made

    def _fitting(self, here: Host, message: Any, to: ProcessId) -> Any:  # noqa: ANN401
        """Return a message as its sender could send it now: of the present epoch and ballot, and its own stage."""
        machine, kind = here.machine, type(message)
        assert isinstance(machine, PeerMachine)
        names, own = {each.name for each in fields(kind)}, max(machine.stage, 0)
        changes: dict[str, Any] = {}
        if "microbatch" in names:
            changes["microbatch"] = Microbatch(machine.epoch, message.microbatch.index)
        if "epoch" in names:
            changes["epoch"] = machine.epoch
        if "ballot" in names and isinstance(message, Prepared | ReducePart | ReduceSum):
            changes["ballot"] = machine.begun
        if "stage" in names:
            changes["stage"] = own
        if "grant" in names:
            changes["grant"] = machine.grant
        if kind in (StateRoot, Ready, LoadFailed):
            changes["version"] = machine.version
        if isinstance(message, Prepared) and machine.epoch_view is not None:
            groups = list(machine.elements) or [f"stage-{own}"]
            changes["results"] = tuple((group, self.random.choice((1.0, 2.0, 1e9)), "x") for group in groups)
        if isinstance(message, Left | Deposed):
            changes["term"] = machine.lease.term + isinstance(message, Deposed)
        if isinstance(message, Suspect):
            changes["process"] = self._victim(here, message.process)
        if kind is Cancel:
            changes["stage"] = max(self._stage(to), 0)
        made = replace(message, **{name: value for name, value in changes.items() if name in names})
        if isinstance(made, HopReport):
            return hop_report(self.random, made, self._hops(here))
        if not isinstance(made, HopOffer | RelayTensor):
            return made
        shown = [each.message.handovers for each in self._samples.get(Done, ()) if isinstance(each.message, Done)]
        at = to
        if isinstance(made, RelayTensor):
            following = [p for p in self.world.alive_peers() if self._stage(p) == own + 1] or [made.to]
            made = replace(made, to=(at := self.random.choice(following)))
        return offer(
            self.random, made, max(self._stage(at), 0), self._hops(here), self._hops(self.world.hosts[at]), shown
        )

    def _victim(self, here: Host, other: ProcessId) -> ProcessId:
        """Return whom a liar accuses: half of the time the same member."""
        members = [p for p in self.world.alive_peers() if p != here.process]
        if not members or self.random.random() < 0.5:
            return other
        name = self._victims.setdefault(here.process.name, self.random.choice(members).name)
        return self.world.launcher.latest.get(name, other)

    def _receiver(self, here: Host, kind: type) -> ProcessId | None:
        """Return a process that may be sent such a message: of the stage that takes it, as a rule."""
        world, draw, machine = self.world, self.random, here.machine
        assert isinstance(machine, PeerMachine)
        if kind in TO_LEADER:
            return machine.leader if machine.leader in world.hosts else None
        alive = alive_processes(world)
        trainers = [process for process in alive if process in world.trainers]
        if kind in (ElectionReport, Deposed):
            return draw.choice(trainers) if trainers else None
        places = INBOUND[kind].places if kind in INBOUND else None
        if places is None and kind in (ReducePart, ReduceSum):
            places = (0,)
        if places is None or draw.random() > self.habit.faithful:
            return draw.choice(alive)
        stages = [machine.stage - place for place in places]
        fits = [p for p in alive if p != here.process and self._stage(p) in stages]
        return draw.choice(fits) if fits else None

    def _stage(self, process: ProcessId) -> int:
        machine = self.world.hosts[process].machine
        return machine.stage if isinstance(machine, PeerMachine) else -1

    # --- pretended tensors ------------------------------------------------------------------------------------------

    def _with_bodies(self, here: Host, action: Send) -> Send:
        """Return a message with bodies of other content, which shows whether its sender was given what it is about."""
        message, world, kind = action.message, self.world, type(action.message)
        if isinstance(message, ReducePart | ReduceSum):
            given = GIVEN if self._has_piece(here, message) else FORGED
            true = here.device.sums.own_addend() if here.device.weights is not None else Counter()
            value = Sum.of([true, Counter({given: self.random.randint(1, 9)})])
            size_bytes = world.hardware.piece().usual_bytes(PIECE_ELEMENTS, message.epoch.step)
            bodies: list[object] = [value.counts if isinstance(message, ReducePart) else value]
            if isinstance(message, ReduceSum) and self.random.random() < 0.8:
                message = replace(message, digest=value.name)
        else:
            count = BODIES_MAX.get(kind, 0) if self.random.random() < 0.8 else 0
            bodies, size_bytes = [ForgedTensor(here.process)] * count, world.hardware.boundary_bytes(1, "gradient")
            if isinstance(message, TENSORS) and self.handed.to(here.process, message.microbatch):
                bodies = ["gradient"] * count  # of its own hop it may give whatever it likes
        refs = tuple(world.store(here.process, value, size_bytes) for value in bodies)
        return replace(action, message=message, bodies=refs)

    def _has_piece(self, here: Host, message: ReducePart | ReduceSum) -> bool:
        """Return whether a part is a member's own, or a sum that of a piece that its sender owns, as its leader has it.

        Without a leader nobody knows, and it counts as its own.
        """
        machine = here.machine
        if not isinstance(machine, PeerMachine) or message.group not in machine.elements:
            return False
        lead = self.world.trainers[self.world.leader].lead if self.world.leader is not None else None
        reducing = (
            lead.step.ballot.reductions.get(message.group) if lead is not None and lead.step is not None else None
        )
        if isinstance(message, ReducePart) or reducing is None:
            return True
        owners = reducing.group.owners or reducing.group.members
        return here.process == owners[message.piece % len(owners)]

    def _hops(self, here: Host) -> Mapping[Microbatch, Hop]:
        machine = here.machine
        return machine.hops.hops if isinstance(machine, PeerMachine) and machine.hops is not None else {}

    def _carry(self, here: Host, action: Send) -> None:
        """Send a message, and let go of the bodies that were made for it."""
        self.handed.note(here.process, action, trainer=here.process in self.world.trainers)
        self.world.transport.carry(here, action)
        for body in action.bodies:
            if isinstance(body, Ref):
                here.stored.pop(body.key, None)
