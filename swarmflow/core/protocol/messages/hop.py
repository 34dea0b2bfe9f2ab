"""Messages about one hop of one microbatch: between its sender (upstream), its holder and the stage after it.

Bodies are boundary tensors in wire form. An `attempt` is counted by the sender; a later one replaces an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.protocol.types import Attempt, Epoch, Microbatch, ProcessId


@dataclass(frozen=True, slots=True)
class HopHandover:
    """That `giver` handed a hop over, with this attempt (core/protocol/handovers.py).

    before: digest of how the hop before it came to the giver; empty: the giver is a trainer.
    """

    giver: ProcessId
    stage: int
    attempt: Attempt
    before: bytes = b""
    proof: bytes = field(default=b"", compare=False, repr=False)  # the giver's signature


@dataclass(frozen=True, slots=True)
class Forward:
    """Compute this hop. Bodies: the input (token ids for stage 0, else the activation) and what travels with it.

    These are the targets, or the tensors of a module's batch that stages after the first one need.
    """

    microbatch: Microbatch
    stage: int
    attempt: Attempt
    repair: bool = False  # a former holder died: the next hop may be held already, so ask before sending it on
    held_by: ProcessId | None = None  # in a repair: who holds the next hop, where known
    insist: bool = False  # no other peer can take it, so a draining one must
    settled: bool = False  # the sender has the gradient already: a Backward without a body is enough
    # How the hop before came to the sender, all the way from a trainer; a trainer has none.
    handovers: tuple[HopHandover, ...] = field(default=(), compare=False, repr=False)
    proof: bytes = field(default=b"", compare=False, repr=False)  # the sender's signature: it hands the hop over


@dataclass(frozen=True, slots=True)
class ReserveSlot:
    """Ask for a slot for this hop; the bytes follow once it is reserved, and with them how it came to the sender."""

    microbatch: Microbatch
    stage: int
    attempt: Attempt
    insist: bool = False  # as in Forward
    sent: int = 0  # by this sender without asking, in this epoch: those that have not arrived yet need slots first
    held_by: ProcessId | None = None  # as in Forward: whoever computes the hop gets its gradient from there


@dataclass(frozen=True, slots=True)
class SlotReserved:
    """A slot is reserved: send the bytes, or cancel it. downstream_s: as in Accepted. queued: passes to compute.

    free: slots that are left; with none the sender gets a credit for the next one, as after a denial. work_s: that
    all takes that is here or has a slot, to compute or to send, with this one. each_s: that one microbatch takes.
    gradient_s: that a tensor takes from `ReserveSlot.held_by`, as far as the way there tells; 0: not known.
    """

    microbatch: Microbatch
    stage: int
    attempt: Attempt
    downstream_s: float = 0.0
    free: int = 0
    queued: int = 0
    work_s: float = 0.0
    each_s: float = field(default=0.0, compare=False)
    gradient_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Adopt:
    """Ask whether the receiver holds this hop. If so, the sender is its predecessor from now on and gets the gradient.

    Lower attempts are void then. settled, handovers, proof: as in Forward.
    """

    microbatch: Microbatch
    stage: int
    attempt: Attempt
    settled: bool = False
    handovers: tuple[HopHandover, ...] = field(default=(), compare=False, repr=False)
    proof: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The sender holds the hop. downstream_s: time of the best path beyond it, forth and back.

    queued: passes that it has to compute, whoever they are for; 0: it has computed this one. pass_s: that one takes;
    0: not known. work_s, each_s: as in SlotReserved.
    """

    microbatch: Microbatch
    stage: int
    attempt: Attempt
    downstream_s: float = 0.0
    queued: int = 0
    pass_s: float = 0.0
    work_s: float = 0.0
    each_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Denied:
    """The sender does not hold the hop. reason: `full`, `draining`, `unknown`, `stale`, `stage` or `invalid`.

    work_s, each_s: as in SlotReserved, but without this one.
    """

    microbatch: Microbatch
    stage: int
    attempt: Attempt
    reason: str
    work_s: float = field(default=0.0, compare=False)
    each_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class CreditAvailable:
    """A peer that was full when it denied the receiver has a free slot."""

    stage: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Measure the link: to be answered at once. loaded: with a body of random bytes."""

    epoch: Epoch
    loaded: bool


@dataclass(frozen=True, slots=True)
class Probed:
    """Answer a Probe. downstream_s: as in Accepted."""

    epoch: Epoch
    loaded: bool
    downstream_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DownstreamCost:
    """Announce a changed downstream_s (as in Accepted) to those that have probed the link to here."""

    epoch: Epoch
    downstream_s: float


@dataclass(frozen=True, slots=True)
class CreditReturned:
    """Return an unused credit: the sender has no microbatch left for it."""

    stage: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """The hop or the reservation is not the receiver's any more: it was late, or is not needed.

    Whether a gradient that was accumulated for it counts is decided by the entries of Prepare.
    """

    microbatch: Microbatch
    stage: int
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Routed:
    """Tell the predecessor who holds the next hop. attempt: the predecessor's own."""

    microbatch: Microbatch
    stage: int
    attempt: Attempt
    successor: ProcessId


@dataclass(frozen=True, slots=True)
class Backward:
    """Return the gradient of the hop's input to the predecessor, as the body.

    Without a body: to a trainer, the microbatch is complete; to a peer, this holder has computed the gradient that the
    peer has already.
    """

    microbatch: Microbatch
    stage: int
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class RelayTensor:
    """Ask a third peer to pass a Forward or a Backward on to `to`, by the faster path. Bodies: of that message."""

    to: ProcessId
    forward: Forward | None = None
    backward: Backward | None = None
    proof: bytes = field(
        default=b"", compare=False, repr=False
    )  # the sender's signature of all of this, and the bodies

    @property
    def microbatch(self) -> Microbatch:
        """The microbatch of the message inside."""
        inner = self.forward or self.backward
        assert inner is not None, "a RelayTensor without either is refused"
        return inner.microbatch


@dataclass(frozen=True, slots=True)
class RelayedTensor:
    """Deliver a relayed Forward or Backward from `origin`. Bodies: of that message. proof: of the RelayTensor."""

    origin: ProcessId
    forward: Forward | None = None
    backward: Backward | None = None
    proof: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Recall:
    """Ask the holder of a hop (stage -1: the trainer) for a tensor that the sender has evicted.

    gradient: the gradient of the hop's input, else its output. A holder that has evicted it too computes it again,
    without accumulating anything.
    """

    microbatch: Microbatch
    stage: int
    gradient: bool


@dataclass(frozen=True, slots=True)
class Recalled:
    """Answer a Recall. Bodies: of the Backward or the Forward; none: the sender does not hold the hop."""

    microbatch: Microbatch
    stage: int
    gradient: bool


@dataclass(frozen=True, slots=True)
class Done:
    """Report to the leader that the hop's gradient is accumulated. loss_sum, tokens: from the last stage only."""

    microbatch: Microbatch
    stage: int
    attempt: Attempt
    loss_sum: float = 0.0
    tokens: int = 0
    # How the hop came to the sender, from it back to a trainer.
    handovers: tuple[HopHandover, ...] = field(default=(), compare=False, repr=False)
    successor: ProcessId | None = field(default=None, compare=False, repr=False)  # from which the gradient came
    ballot: int = field(default=0, compare=False, repr=False)  # of its sender: the last it has reconciled with
