"""What nodes say to each other in GWTF's negotiation (GWTF, V-C)."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.types import ProcessId


@dataclass(frozen=True, order=True, slots=True)
class FlowId:
    """The name of an outflow: of the node that made it, and a number."""

    node: ProcessId
    number: int


@dataclass(frozen=True, slots=True)
class CostIs:
    """The cheapest unpaired outflow to a data node costs this much to the sink; infinite: there is none."""

    source: ProcessId
    cost: float


@dataclass(frozen=True, slots=True)
class RequestFlow:
    """I should like to send my outflow `flow` to your unpaired outflow to this data node, at this cost."""

    source: ProcessId
    cost: float
    flow: FlowId


@dataclass(frozen=True, slots=True)
class FlowApproved:
    """You may send `flow`; it is connected to the outflow `below`.

    turn: how often the sender of `below` has changed; moves: how often `below` itself has. Both are told with every
    change, for messages of different nodes overtake each other.
    """

    source: ProcessId
    cost: float
    flow: FlowId
    below: FlowId
    turn: int
    moves: int


@dataclass(frozen=True, slots=True)
class FlowRejected:
    """There is none at that cost (any more); cost: the current one, infinite without any."""

    source: ProcessId
    cost: float
    flow: FlowId


@dataclass(frozen=True, slots=True)
class Query:
    """To all of the same stage: tell me your flows."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An outflow as others of the stage see it. before: None while it is unpaired."""

    flow: FlowId
    source: ProcessId
    before: ProcessId | None
    after: ProcessId
    cost_before: float
    cost_after: float


@dataclass(frozen=True, slots=True)
class Flows:
    """The answer to a query, with the costs of sending to each of the next stage."""

    shown: tuple[Shown, ...]
    costs: tuple[tuple[ProcessId, float], ...]


@dataclass(frozen=True, slots=True)
class RequestChange:
    """Let my outflow and yours change places: I send to `theirs_after`, you to `mine_after`.

    costs: of my link now and of the one that I would get. anneal: it costs more, and the requester's annealing wants
    it all the same. turn, moves: of `mine_below`.
    """

    mine: FlowId
    mine_after: ProcessId
    mine_below: FlowId
    turn: int
    moves: int
    theirs: FlowId
    theirs_after: ProcessId
    costs: tuple[float, float]
    anneal: bool


@dataclass(frozen=True, slots=True)
class ChangeAccepted:
    """We have changed: your outflow `mine` goes to `below` at `after` now. turn, moves: of `below` before that."""

    mine: FlowId
    theirs: FlowId
    after: ProcessId
    below: FlowId
    turn: int
    moves: int


@dataclass(frozen=True, slots=True)
class RequestRedirect:
    """Let me take this outflow from you, under its name: `before` sends it to me, and I to `after`, at this cost."""

    flow: FlowId
    before: ProcessId
    after: ProcessId
    cost: float
    anneal: bool


@dataclass(frozen=True, slots=True)
class RedirectAccepted:
    """It is yours. above: what it is called at `before`; below: at `after`; cost: from `after` to the sink.

    turn, moves: of `below`; own_turn, own_moves: of the outflow, before that.
    """

    flow: FlowId
    source: ProcessId
    before: ProcessId
    after: ProcessId
    above: FlowId
    below: FlowId
    cost: float
    turn: int
    moves: int
    own_turn: int
    own_moves: int


@dataclass(frozen=True, slots=True)
class SwapRefused:
    """No change and no redirect of this outflow."""

    flow: FlowId


@dataclass(frozen=True, slots=True)
class NewBefore:
    """To the next stage: `flow` of yours comes from `before` now, where the outflow is called `above`.

    passed: as in the three below, by how many it was sent on, since the flow was another's by then.
    """

    flow: FlowId
    before: ProcessId
    above: FlowId
    turn: int
    passed: int = 0


@dataclass(frozen=True, slots=True)
class Deny:
    """To the stage before (GWTF, V-D): `below`, to which your `flow` goes if it goes to `after`, is no more."""

    flow: FlowId
    below: FlowId
    after: ProcessId
    passed: int = 0


@dataclass(frozen=True, slots=True)
class Dropped:
    """To the next stage: nobody sends to your `flow` any more, if it comes from `above` at `before`."""

    flow: FlowId
    before: ProcessId
    above: FlowId
    passed: int = 0


@dataclass(frozen=True, slots=True)
class NewAfter:
    """To the stage before: `below`, to which your `flow` goes, is at `after` now."""

    flow: FlowId
    after: ProcessId
    below: FlowId
    moves: int
    passed: int = 0
