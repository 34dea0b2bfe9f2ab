"""One microbatch in flight: what its sender knows about where it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from swarmflow.core.protocol.messages import Adopt, HopHandover
from swarmflow.core.protocol.types import Attempt, Microbatch, ProcessId, Ref
from swarmflow.core.transitions import Transitions

DOUBLINGS_MAX = 60  # of a time that grows as others fail: it is longer than any run by then, and a float yet


class FlightState(StrEnum):
    """One microbatch on its way to the next stage, from the dispatch until its gradient returns."""

    WAITING = "waiting"  # at no peer: about to be routed, or no peer could take it
    ASKING = "asking"  # a repair: peers were asked which of them holds it already
    RESERVING = "reserving"  # its holder was asked for a slot; the bytes are not sent yet
    UNREQUESTED = "unrequested"  # the bytes were sent without asking, and the holder has not answered yet
    HELD = "held"  # at its holder: accepted, found there, or sent into a reserved slot
    RETURNED = "returned"  # the gradient is back
    STARVED = "starved"  # its holder died, and the input was evicted: it waits until that is computed again


_MOVED = "the holder died, is late or denies it"
_LATER = f"{_MOVED}, or others will be done sooner"
FLIGHT = Transitions(
    "microbatch in flight",
    FlightState.WAITING,
    {
        FlightState.WAITING: {
            FlightState.ASKING: "it is a repair",
            FlightState.RESERVING: "this sender has used up its share of the chosen peer's slots",
            FlightState.UNREQUESTED: "the chosen peer has a slot for this sender",
        },
        FlightState.ASKING: {FlightState.HELD: "a peer holds it", FlightState.WAITING: "no peer holds it"},
        FlightState.RESERVING: {
            FlightState.HELD: "the slot is reserved, or the holder has it already",
            FlightState.WAITING: _LATER,
        },
        FlightState.UNREQUESTED: {FlightState.HELD: "the holder accepts it", FlightState.WAITING: _MOVED},
        FlightState.HELD: {FlightState.RETURNED: "the gradient arrives", FlightState.WAITING: _MOVED},
        FlightState.RETURNED: {
            FlightState.WAITING: "the holder died, or no process has its gradient in the sum any more",
            FlightState.STARVED: "the same, and the input is evicted",
        },
        FlightState.STARVED: {FlightState.WAITING: "the input is back"},
    },
)
AT_HOLDER = frozenset((FlightState.RESERVING, FlightState.UNREQUESTED, FlightState.HELD))


@dataclass(slots=True)
class InFlight:
    """One microbatch that was dispatched to the next stage."""

    microbatch: Microbatch
    data: Ref | None  # input of the hop; None: evicted
    targets: Ref
    attempt: Attempt
    repair: bool = False  # a peer may hold it already
    hint: ProcessId | None = None  # the peer that probably holds it
    source: ProcessId | None = None  # the trainer that formed it
    handovers: tuple[HopHandover, ...] = ()  # of the hop before, to this process
    state: FlightState = field(default=FLIGHT.initial, init=False)
    holder: ProcessId | None = field(default=None, init=False)
    successor: ProcessId | None = field(default=None, init=False)  # to whom the holder has passed it on
    # Were asked for a slot beside the holder, and have not denied it (`offers`).
    alternatives: dict[ProcessId, None] = field(default_factory=dict, init=False)
    # Of these and the holder, who has reserved a slot: expected seconds until the gradient returns from there.
    offers: dict[ProcessId, float] = field(default_factory=dict, init=False)
    asked: set[ProcessId] = field(default_factory=set, init=False)  # peers whose answer to an Adopt is awaited
    # Until when it may wait for a full peer that will be done sooner than a free one; None: it has not waited yet.
    patient_s: float | None = field(default=None, init=False)
    sent_at_s: float = field(default=0.0, init=False)
    arrived_s: float | None = field(default=None, init=False)
    queued: int = field(default=0, init=False)  # passes that its holder had to compute with it, as it said
    late_s: float = field(default=0.0, init=False)  # from then on the holder is late
    unheard: bool = field(default=False, init=False)  # asked again, or cut off: the holder has not answered since
    times_late: int = field(default=0, init=False)  # how often it was late
    measured: bool = field(default=False, init=False)  # the holder's time has been measured
    restored: bool = field(default=False, init=False)  # the evicted input was brought back, to be re-sent
    settled: bool = field(default=False, init=False)  # the gradient has returned once, perhaps from an earlier holder

    @property
    def bodies(self) -> tuple[Ref, ...]:
        """The tensors that are still here; a Forward carries both."""
        return (self.targets,) if self.data is None else (self.data, self.targets)

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors that are still here."""
        return self.targets.size_bytes + (0 if self.data is None else self.data.size_bytes)

    @property
    def returned(self) -> bool:
        """Whether the gradient is back."""
        return self.state is FlightState.RETURNED

    @property
    def reserving(self) -> bool:
        """Whether the holder was asked for a slot and has no bytes yet."""
        return self.state is FlightState.RESERVING

    @property
    def gradient_at(self) -> ProcessId | None:
        """In a repair, where the gradient of the hop's output is, or will be: the hop had been passed on."""
        return self.successor if self.repair else None

    @property
    def candidates(self) -> tuple[ProcessId, ...]:
        """The peers that are asked for a slot: the holder, and others beside it."""
        return (self.holder, *self.alternatives) if self.reserving and self.holder is not None else ()

    @property
    def held(self) -> bool:
        """Whether it takes a slot at its holder."""
        return self.state in AT_HOLDER

    @property
    def awaited(self) -> bool:
        """Whether a holder has not passed it on yet."""
        return self.held and not self.measured

    @property
    def watched(self) -> bool:
        """Whether an answer or a gradient is due."""
        return bool(self.asked) or self.held

    @property
    def patience(self) -> float:
        """The factor of its deadlines: twice as much each time that it was late."""
        return 2.0 ** min(self.times_late, DOUBLINGS_MAX)

    def adopt(self, stage: int) -> Adopt:
        """Return the question whether a peer of the stage holds it."""
        return Adopt(self.microbatch, stage, self.attempt, self.settled, self.handovers)

    def move(self, to: FlightState) -> None:
        """Enter a state. Raises IllegalTransition."""
        self.state = FLIGHT.move(self.state, to)
        assert (self.holder is not None) == (to in AT_HOLDER or to is FlightState.RETURNED), f"{to}: {self.holder}"
