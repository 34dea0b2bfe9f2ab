"""The validity table of the messages: the range or length of every field, checked before a machine sees a message.

The wire decodes a message into its types (runtime/transport/wire.py); the ranges of its numbers, texts and sequences
stand here, once for production and simulator. The messages of the flow negotiation have a table of their own
(core/routing/flow/plausibility.py).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from typing import Any

from swarmflow.core.protocol.messages import (
    FROM_TRAINERS,
    Backward,
    Commit,
    ElectionReport,
    ElectorateChange,
    Forward,
    Join,
    KeepCopy,
    MeasureLinks,
    Message,
    OpenStep,
    Prepare,
    Probe,
    Recalled,
    ReducePart,
    ReduceSum,
    RelayedTensor,
    RelayTensor,
    RosterDelta,
)
from swarmflow.core.protocol.messages.membership import SURVEYED_MAX
from swarmflow.core.protocol.messages.negotiation import FlowMessage
from swarmflow.core.protocol.types import (
    ADDRESSES_MAX,
    REPAIRS_MAX,
    RUN_ELEMENTS,
    Attempt,
    Epoch,
    Group,
    Member,
    Microbatch,
    Plan,
    ProcessId,
    Role,
    Roster,
)

PROOF_BYTES_MAX = 512
LAYER_LENGTH_MAX = 120  # of the name of a layer, likewise
REASON_MAX = 500  # characters of a reason: what is longer is cut where it is made, and refused where it arrives
COUNT_MAX = 1 << 40  # of anything that is counted
LIFETIME_MAX = 1 << 53  # of what a process counts as long as it lives; above it a float, as in JSON, is not exact
SECONDS_MAX = 1e9
LOSS_MAX = 1e30
SLOWEST, FASTEST = 1.0, 1e12  # bytes/s of a link or a connection: no other rate is believed
MEMBERS_MAX = 100_000  # of a roster
REASONS = frozenset(("full", "draining", "unknown", "stale", "stage", "invalid", "orphan"))  # of a Denied
BODIES_MAX: dict[type, int] = {
    Forward: 2,
    Backward: 1,
    Recalled: 2,
    RelayTensor: 2,
    RelayedTensor: 2,
    Probe: 1,
    ReducePart: 1,
    ReduceSum: 1,
}

NAMED_TUPLES = (ProcessId, Attempt, Epoch, Microbatch)
_OF_NUMBERS = (Attempt, Epoch, Microbatch)  # no text, of which a sender chooses the length
KEPT_MAX = 4096  # of each kind: a step's microbatches
Check = Callable[[Any], bool]
Range = tuple[float, float]

# The items of tuples of fixed length, by the name of the field that holds them, for the tables below.
_ITEMS: dict[str, tuple[str, ...]] = {
    "entries": ("index", "attempt"),
    "lost": ("stage", "index"),
    "lost_ahead": ("stage", "index"),
    "results": ("group", "norm", "results.digest"),
    "LinkRateReport.elements": ("group", "elements"),
    "rates": ("process", "rate"),
    "links": ("place", "place", "seconds"),
    "LinkGains.links": ("process", "latency_s", "rate"),
}


def _numbers(stages: int, microbatches: int) -> dict[str, Range]:
    """The range of every number, both ends included, by `Class.field` or else by `field`. Not-a-number is in none."""
    stage, stage_or_none, index = (0, stages - 1), (-1, stages - 1), (0, microbatches - 1)
    count, count_or_none, seconds, rate = (0, COUNT_MAX), (-1, COUNT_MAX), (0.0, SECONDS_MAX), (0.0, 1e30)
    loss, norm = (-LOSS_MAX, LOSS_MAX), (0.0, 1e300)
    counts = "step version oldest durable newest term ballot piece elements retries queued held sent done peers hops"
    counts += " free queued"
    return {
        **dict.fromkeys(("stage", "stages"), stage),
        **{f"{kind}.stage": stage_or_none for kind in ("Member", "Recall", "Recalled", "Backward", "Negotiate")},
        "Join.member.stage": (-1, 1 << 31),
        "unfit": stage,
        **dict.fromkeys(("index", "indices", "ahead_indices", "dropped"), index),
        "NotFinite.index": (-1, microbatches - 1),
        **dict.fromkeys(counts.split(), count),
        **dict.fromkeys(("generation", "grant", "Heartbeat.version", "ElectionReport.version"), count_or_none),
        **dict.fromkeys(("tokens", "Surplus.whole"), count),
        # Of a process that lives for months: a peer at 1 Gb/s has sent 2^40 bytes after 2.5 hours.
        **{f"PeerSummary.{kind}": (0, LIFETIME_MAX) for kind in ("hops", "tokens")},
        **{f"{kind}_bytes": (0, LIFETIME_MAX) for kind in ("sent", "received", "memory", "loading", "loading_total")},
        # A step is told as the sum of its microbatches: no such sum may be one that the table refuses.
        **dict.fromkeys(("Tally.tokens", "StepResult.tokens"), (microbatches, COUNT_MAX)),
        "Done.tokens": (0, COUNT_MAX // microbatches),
        "Done.loss_sum": (-LOSS_MAX / 10, LOSS_MAX / 10),
        **dict.fromkeys(("reassignment", "Attempt.denials"), count),
        "Attempt.repair": (0, REPAIRS_MAX),
        # The next leader counts on.
        **dict.fromkeys(("ElectionReport.reassignment", "ElectionReport.ballot"), (0, COUNT_MAX // 2)),
        "incarnation": (0, 1 << 64),
        "capacity": (0, 1 << 31),
        "exponent": (-1024, 1024),
        "kept": (1, RUN_ELEMENTS),
        "followed": stage,
        "named": (0, MEMBERS_MAX),
        "microbatches": (0, microbatches),
        **dict.fromkeys(
            ("downstream_s", "work_s", "each_s", "gradient_s", "pass_s", "wait_s", "seconds", "rebalance_s"), seconds
        ),
        **dict.fromkeys(("compute_s", "used_s", "wasted_s", "latency_s"), seconds),
        "speed": (0.0, 1e15),
        "metrics_port": (0, 65535),
        "place": (0, SURVEYED_MAX - 1),
        "survey": count,
        "gains": seconds,
        **dict.fromkeys(("loss_sum", "loss"), loss),
        **dict.fromkeys(("norm", "grad_norm"), norm),
        "scale": (0.0, 1.0),
        "learning_rate": (0.0, 1e9),
        **dict.fromkeys(("rate", "upload_rate"), rate),
    }


# Shortest and longest text, in characters.
_TEXTS: dict[str, tuple[int, int]] = {
    "reason": (0, REASON_MAX),
    "failed": (0, REASON_MAX),
    "void": (0, REASON_MAX),
    "role": (0, 32),
    "software": (0, 128),
    "run": (0, 256),
    "digest": (0, 128),
    "results.digest": (0, 128),
    "roots": (1, 128),
    "root": (1, 128),
    "ElectionReport.root": (0, 128),
    "SnapshotTaken.root": (0, 128),
    "Held.root": (0, 128),
    "value": (1, 16),
    "reach": (0, 16),
    "layer": (0, LAYER_LENGTH_MAX),
    "lineage": (1, 64),
    **dict.fromkeys(("Commit.lineage", "Tally.lineage"), (0, 64)),
    "whole": (0, 128),
    "roster": (0, 128),
    "group": (1, 64),
    "name": (1, 64),
    "Granted.name": (0, 64),
    "Held.name": (0, 64),
    "upcoming": (0, 64),
    "addresses": (1, 512),
}
_FREE = frozenset(("validation_loss",))  # it is logged and nothing else; not-a-number where it was not measured


def _lengths(stages: int, microbatches: int) -> dict[str, int]:
    """The most items of every sequence."""
    return {
        "addresses": ADDRESSES_MAX,
        "copies": 64,
        "handovers": stages,
        "roots": 4096,
        "stages": stages,
        "indices": microbatches,
        "ahead_indices": microbatches,
        "dropped": microbatches,
        "entries": microbatches,
        "done": 2 * microbatches,
        "lost": stages * microbatches,
        "lost_ahead": stages * microbatches,
        "results": 8,
        "groups": 2 * stages,  # one a stage, and one for weights on both sides of each edge, or at both ends
        "peers": stages,
        "followed": stages,
        "kept": stages,
        "donors": 64,
        "holders": max(stages, 64),
        "LinkRateReport.elements": 64,
        "rates": 4096,
        "awaits": 16,
        "MeasureLinks.members": SURVEYED_MAX,
        "links": SURVEYED_MAX**2 // 4,
        "LinkGains.links": SURVEYED_MAX,
        "gains": stages,
        "unfit": stages,
    }


class MessageChecks:
    """Says what of a message cannot be true in a run of so many stages and microbatches, whoever sends it."""

    def __init__(self, stages: int, microbatches: int) -> None:
        self._stages = stages
        self._numbers = _numbers(stages, microbatches)
        self._lengths = _lengths(stages, microbatches)
        self._member = self._of_class(Member, "")[1]
        made = {kind: self._of_class(kind, "") for kind in typing.get_args(Message)}
        self._fields = {kind: named for kind, (named, _) in made.items()}
        self._checks = {kind: check for kind, (_, check) in made.items()}

    def wrong(
        self, message: Message, bodies: int = 0, role: Role | None = "trainer", signed: bool = True
    ) -> str | None:
        """What is wrong with a message that has so many bodies, in words; None: all of it may be as it is.

        role: that its sender's certificate gives it; None: it has none. signed: it has the signatures that it needs.
        """
        kind = type(message)
        if role != "trainer" and _needs_trainer(message):
            return f"{kind.__name__} without the certificate of a trainer"
        if not signed:
            return f"{kind.__name__} without the signature that it needs"
        if bodies and bodies > _bodies_max(message):
            return f"{kind.__name__} with {bodies} bodies"
        if self._checks[kind](message):
            empty = isinstance(message, OpenStep) and not message.roster.stages
            return "an OpenStep names no stages" if empty else None
        for name, fits in self._fields[kind]:
            if not fits(value := getattr(message, name)):
                return f"{kind.__name__}.{name} cannot be {_shown(value)}"
        return f"the parts of this {kind.__name__} do not fit each other"

    # --- made once for each type --------------------------------------------------------------------------------------

    def _of_class(self, kind: type, inside: str) -> tuple[tuple[tuple[str, Check], ...], Check]:
        """The checks of the fields of a class, and of the whole. inside: `Class.field` where it stands."""
        hints = typing.get_type_hints(kind)
        names = list(hints) if kind in NAMED_TUPLES else [field.name for field in fields(kind)]
        made = [(name, self._of(hints[name], (f"{inside}.{name}", f"{kind.__name__}.{name}", name))) for name in names]
        checks = tuple((name, check) for name, check in made if check is not None)
        whole: Check | None = self._report if kind is ElectionReport else _WHOLE.get(kind)

        def check(value: object) -> bool:
            for name, fits in checks:  # a generator would take twice as long, and this is done at each message
                if not fits(getattr(value, name)):
                    return False
            return whole is None or whole(value)

        # A process sends the same few of these again and again.
        return checks, lru_cache(maxsize=KEPT_MAX)(check) if kind in _OF_NUMBERS else check

    def _of(self, hint: Any, names: tuple[str, ...]) -> Check | None:  # noqa: ANN401
        """The check of a value of this type; None: all such values are right. names: in the tables, in this order."""
        if hint is bool or hint == FlowMessage or names[-1] in _FREE:
            return None
        if "Denied.reason" in names:
            return REASONS.__contains__
        if hint in (int, float):
            low, high = _first(self._numbers, names)
            return lambda value: bool(low <= value <= high)
        if hint is bytes:
            return lambda value: len(value) <= PROOF_BYTES_MAX
        if hint is str:
            shortest, longest = _first(_TEXTS, names)
            return lambda value: shortest <= len(value) <= longest
        if isinstance(hint, types.UnionType):
            [kind] = [each for each in typing.get_args(hint) if each is not types.NoneType]
            fits = self._of(kind, names)
            return None if fits is None else (lambda value: value is None or fits(value))
        if typing.get_origin(hint) is tuple:
            return self._of_tuple(typing.get_args(hint), names)
        assert isinstance(hint, type), f"the tables have no rule for {names[-2]}"
        return self._roster if hint is Roster else self._of_class(hint, names[-2])[1]

    def _of_tuple(self, items: tuple[Any, ...], names: tuple[str, ...]) -> Check:
        if Ellipsis not in items:
            parts = zip(items, _first(_ITEMS, names), strict=True)
            checks = [self._of(item, (f"{names[-2]}.{part}", part)) or bool for item, part in parts]
            return lambda value: all(fits(part) for fits, part in zip(checks, value, strict=True))
        most = next((self._lengths[name] for name in names if name in self._lengths), MEMBERS_MAX)
        each = self._of(items[0], names)
        assert each is not None, f"the tables have no rule for the items of {names[-2]}"
        return lambda values: len(values) <= most and all(map(each, values))

    # --- parts that have to fit each other ----------------------------------------------------------------------------

    def _roster(self, roster: Roster) -> bool:
        """Whether a roster is one of this run. A blank one stands for one that the receiver has.

        The answer is kept with it: where one process pretends to be many, all of them ask the same.
        """
        known = roster.__dict__.get("_fits")
        if known is None or known[0] is not self:
            known = roster.__dict__["_fits"] = (self, self._roster_anew(roster))
        return bool(known[1])

    def _roster_anew(self, roster: Roster) -> bool:
        if len(roster.stages) not in (0, self._stages) or roster.size > MEMBERS_MAX:
            return False
        rows = (*enumerate(roster.stages), (-1, roster.trainers))
        placed = all(member.stage == stage for stage, row in rows for member in row)
        return placed and all(map(self._member, roster.members)) and len(roster.id_set) == roster.size

    def _report(self, report: Any) -> bool:  # noqa: ANN401
        """A report is of one process, in a place that there is, and about one epoch and its own work."""
        me, join, opened = report.member, report.join, report.opened
        itself = join.member.process == me.process and join.member.stage < self._stages
        serves = me.stage >= 0 or not report.ready
        placed = me.stage == -1 if join.role == "trainer" else join.role == "peer" and serves
        blank = bool(opened.roster.stages) or bool(opened.whole)
        whole = (not report.results or report.tally is not None) and len(set(report.done)) == len(report.done)
        own = all(done.stage == me.stage for done in report.done)
        own &= me.process not in report.gone and me.process not in report.suspects
        epochs = report.commit is None or report.commit.epoch == opened.epoch
        epochs &= report.change is None or report.change.epoch == opened.epoch
        return itself and placed and blank and whole and own and epochs


def _shown(value: object) -> str:
    """Return what a reason shows of a field: it may be as long as its sender likes."""
    if isinstance(value, str):
        return repr(value[:60])
    if isinstance(value, int | float | ProcessId | Attempt | Epoch | Microbatch):
        return repr(value)[:60]
    return f"{len(value)} items" if isinstance(value, tuple) else f"this {type(value).__name__}"


def _first(table: dict[str, Any], names: tuple[str, ...]) -> Any:  # noqa: ANN401
    for name in names:
        if name in table:
            return table[name]
    raise KeyError(f"the tables have no rule for {names[-2]}")


def _bodies_max(message: Message) -> int:
    """How many bodies it may have; who carries a message for another one gives as many as that one has."""
    inner = (message.forward or message.backward) if isinstance(message, RelayTensor | RelayedTensor) else None
    return BODIES_MAX.get(type(inner or message), 0)


def _needs_trainer(message: Message) -> bool:
    """Whether only a trainer may send this."""
    join = message.join if isinstance(message, ElectionReport) else message
    return type(message) in FROM_TRAINERS or (isinstance(join, Join) and join.role == "trainer")


def _one_inner(message: RelayTensor | RelayedTensor) -> bool:
    return (message.forward is None) != (message.backward is None)


def _open(message: OpenStep) -> bool:
    """A blank roster has no members; of a step without trainers nobody would form the microbatches."""
    if not message.roster.stages:
        return not message.roster.members
    return bool(message.roster.trainers)


def _reopen(change: RosterDelta) -> bool:
    entered = {member.process for member in change.entered}
    return change.base < change.epoch and len(entered) == len(change.entered) and entered.isdisjoint(change.gone)


def _measure_links(message: MeasureLinks) -> bool:
    """Each link leads to the next stage."""
    stages = [member.stage for member in message.members]
    known = all(max(link[:2]) < len(stages) for link in message.links)
    return known and all(stages[sender] + 1 == stages[receiver] for sender, receiver, _ in message.links)


def _prepare(message: Prepare) -> bool:
    indices = {index for index, _ in message.entries}
    names = {group.name for group in message.groups}
    return len(indices) == len(message.entries) and len(names) == len(message.groups)


_WHOLE: dict[type, Check] = {
    RelayTensor: _one_inner,
    RelayedTensor: _one_inner,
    OpenStep: _open,
    RosterDelta: _reopen,
    Group: lambda group: 0 < len(group.members) == len(set(group.members)),
    Prepare: _prepare,
    MeasureLinks: _measure_links,
    KeepCopy: lambda message: len(message.stages) == len(message.holders) == len(set(message.stages)),
    Commit: lambda message: message.result.epoch == message.epoch,
    ElectorateChange: lambda it: set(it.left_trainers) <= set(it.left) and set(it.joined).isdisjoint(it.left),
}


@lru_cache(maxsize=16)
def _made(stages: int, microbatches: int) -> MessageChecks:
    return MessageChecks(stages, microbatches)


def checks_of(plan: Plan) -> MessageChecks:
    """The table for a run of this plan."""
    return _made(plan.stages, plan.microbatches)
