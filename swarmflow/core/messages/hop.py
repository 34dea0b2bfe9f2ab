"""Messages about one hop of one microbatch, between those who carry it."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.types import Epoch, Microbatch, ProcessId


@dataclass(frozen=True, slots=True)
class Forward:
    """Do this hop. Bodies: the input (token ids for stage 0, else the activation) and the targets, in wire form.

    attempt: counted by the sender; a newer attempt replaces an older one. repair: a peer that had this hop died, so
    that the hop after it may be held by somebody already (held_by, where known): the receiver asks before it sends.
    insist: nobody else can take it, so that a draining peer has to. settled: the gradient was given back by the one who
    died, and need not be sent again: a word is enough.
    """

    microbatch: Microbatch
    stage: int
    attempt: int
    repair: bool = False
    held_by: ProcessId | None = None
    insist: bool = False
    settled: bool = False


@dataclass(frozen=True, slots=True)
class ReserveSlot:
    """Have you room for this hop? Its bytes follow when you say so; what is not told here is as in the Forward.

    ahead: microbatches that I have sent you unasked, and whose bytes may still be on the way: they come first.
    """

    microbatch: Microbatch
    stage: int
    attempt: int
    insist: bool = False
    ahead: int = 0
    settled: bool = False


@dataclass(frozen=True, slots=True)
class SlotReserved:
    """The room is kept for you: send the bytes. downstream_s: as in Accepted."""

    microbatch: Microbatch
    stage: int
    attempt: int
    downstream_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Adopt:
    """If you hold this hop, I am its predecessor from now on, and its gradient goes to me; lower attempts are void.

    settled: as in Forward.
    """

    microbatch: Microbatch
    stage: int
    attempt: int
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """The hop is mine. downstream_s: how long the best way beyond me takes, forth and back."""

    microbatch: Microbatch
    stage: int
    attempt: int
    downstream_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Denied:
    """The hop is not mine; reason is one of `full`, `draining`, `unknown`, `stale`, `stage`, `invalid`."""

    microbatch: Microbatch
    stage: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class CreditAvailable:
    """I denied you because I was full; now there is room."""

    stage: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Answer at once: I want to know how long the way to you takes. loaded: with some bytes that say nothing."""

    epoch: Epoch
    loaded: bool


@dataclass(frozen=True, slots=True)
class Probed:
    """The answer. downstream_s: as in Accepted."""

    epoch: Epoch
    loaded: bool
    downstream_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DownstreamCost:
    """To those before: what I say of the way beyond me has changed. downstream_s: as in Accepted."""

    epoch: Epoch
    downstream_s: float


@dataclass(frozen=True, slots=True)
class CreditReturned:
    """I have nothing any more for the room that you told me of: tell another."""

    stage: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """You are late, or were not needed: the hop is another's now.

    What you have accumulated of it, the step's manifest decides about.
    """

    microbatch: Microbatch
    stage: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Routed:
    """To the predecessor: the hop after mine went to `successor`. attempt: the one that the predecessor gave me."""

    microbatch: Microbatch
    stage: int
    attempt: int
    successor: ProcessId


@dataclass(frozen=True, slots=True)
class Backward:
    """To the predecessor: the gradient of what it sent (body).

    No body: to a trainer, the microbatch is complete; to a peer, the gradient that it had before is here too.
    """

    microbatch: Microbatch
    stage: int
    attempt: int


@dataclass(frozen=True, slots=True)
class RelayTensor:
    """To a third peer: hand this on, the way through you is faster. One of the two; bodies: those of the message."""

    to: ProcessId
    forward: Forward | None = None
    backward: Backward | None = None

    @property
    def microbatch(self) -> Microbatch:
        """Of what is handed on."""
        inner = self.forward or self.backward
        assert inner is not None, "a RelayTensor without either is refused"
        return inner.microbatch


@dataclass(frozen=True, slots=True)
class RelayedTensor:
    """From a third peer: `origin` has sent you this through me. Bodies: those of the message."""

    origin: ProcessId
    forward: Forward | None = None
    backward: Backward | None = None


@dataclass(frozen=True, slots=True)
class Recall:
    """To who did the hop of this stage (-1: the trainer): send me once more what it gave, I have kept it no longer.

    gradient: that of its input, else its output. Whoever gave it up too computes it again; nothing is accumulated.
    """

    microbatch: Microbatch
    stage: int
    gradient: bool


@dataclass(frozen=True, slots=True)
class Recalled:
    """The answer, with the fields of the question. Bodies: those of the Backward or Forward; none: I do not have it."""

    microbatch: Microbatch
    stage: int
    gradient: bool


@dataclass(frozen=True, slots=True)
class Done:
    """To the leader: the gradient of this hop is accumulated. loss_sum, tokens: from the last stage only."""

    microbatch: Microbatch
    stage: int
    attempt: int
    loss_sum: float = 0.0
    tokens: int = 0
