"""Values that were not finite: whose they were, who sits out until they are computed elsewhere, and when to stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmflow.core.protocol.types import ProcessId, Roster

VALUES = ("activation", "loss", "gradient", "sum", "update")
TRIES_MAX = 16  # voided tries of one step, after which the run stops although no hop has failed twice
SAME_PEER_MAX = 3  # of these by one peer that nobody can stand in for
LAYER_LENGTH_MAX = 120


@dataclass(frozen=True, slots=True)
class Finding:
    """A value that was not finite, of one try at a step."""

    version: int  # of the weights
    index: int  # the microbatch, -1: a sum over several
    stage: int  # where it was computed, -1: not known
    holder: ProcessId | None  # the peer that computed it, None: not known
    value: str  # what it is, one of VALUES
    layer: str = ""  # the part of the model in which it arises, empty: not known

    def __str__(self) -> str:
        whose = f"of microbatch {self.version}/{self.index}" if self.index >= 0 else f"of step {self.version}"
        where = f" in {self.layer} of" if self.layer else " on"
        return f"the {self.value} {whose} is not finite" + (f"{where} stage {self.stage}" if self.stage >= 0 else "")

    def same_hop(self, other: Finding) -> bool:
        """Return whether both are of one hop, or of sums of one stage at one version."""
        mine = (self.version, self.stage, self.index, self.value == "update")
        return mine == (other.version, other.stage, other.index, other.value == "update")


@dataclass(slots=True)
class Findings:
    """The findings of the versions that are not committed yet.

    A hop whose value is not finite is computed once more, by another peer if there is one. Finite there, its first
    holder was at fault; not finite again, it is the data, the weights or the settings, and the run stops.
    """

    found: list[Finding] = field(default_factory=list)

    def of(self, version: int) -> list[Finding]:
        """Return the findings of one version."""
        return [finding for finding in self.found if finding.version == version]

    def add(self, finding: Finding, others: bool) -> str:
        """Record one. Returns why the run has to stop, empty: the step is tried again.

        others: whether another peer of its stage may compute it, which has given nothing of that kind at this version.
        """
        before = self.of(finding.version)
        self.found.append(finding)
        for first in before:
            moved = others and first.holder is not None and first.holder == finding.holder
            if first.same_hop(finding) and not moved:
                return f"{finding}, {_twice(first.holder, finding.holder)}"
        own = [first for first in before if first.holder == finding.holder and first.holder is not None]
        if not others and len(own) + 1 >= SAME_PEER_MAX:
            return f"{finding}, the {len(own) + 1}th such value of {finding.holder}, which nobody can stand in for"
        if self.too_many(finding.version):
            return f"{finding}, after {len(before)} others of this step"
        return ""

    def too_many(self, version: int) -> bool:
        """Return whether there were so many of one version that it cannot be chance."""
        return len(self.of(version)) >= TRIES_MAX

    def thin(self, name: str) -> None:
        """Keep one of each hop of a process that nobody confirms: another one may yet find the same."""
        kept: list[Finding] = []
        for finding in self.found:
            own = finding.holder is not None and finding.holder.name == name
            if not own or not any(finding.same_hop(f) and f.holder and f.holder.name == name for f in kept):
                kept.append(finding)
        self.found = kept

    def settle(self, version: int) -> list[Finding]:
        """A version is committed: what was found of it, or before it, is over. Returns what was found of it.

        But for its update: with whom it failed, its stage may be lost, and the run comes back to it.
        """
        over = [finding for finding in self.of(version) if finding.value != "update"]
        self.found = [f for f in self.found if f.version > version or (f.version == version and f.value == "update")]
        return over


def blame(version: int, accusers: Mapping[ProcessId, ProcessId], roster: Roster) -> Finding:
    """A sum is not finite, and nobody has said so of its own addends: by who made it, if all who have it say so.

    Who says so alone, or while another of its stage has a norm of the same bits, is at fault itself. accusers: and
    whom each of them means.
    """
    accuser, owner = min(accusers.items())
    by_members = [accusers.get(member.process) for member in roster.stages[roster.stage_of(accuser)]]
    holder = owner if len(by_members) > 1 and set(by_members) == {owner} and owner in roster.peer_ids else accuser
    return Finding(version, -1, roster.stage_of(holder), holder, "sum")


def _twice(first: ProcessId | None, second: ProcessId | None) -> str:
    if first is None or second is None:
        return "twice"
    return f"twice on {second}" if first == second else f"neither on {first} nor on {second}"


def plain(layer: str) -> str:
    """The name of a layer as a peer says it; empty where it cannot be one."""
    return layer if len(layer) <= LAYER_LENGTH_MAX and layer.isascii() and layer.isprintable() else ""
