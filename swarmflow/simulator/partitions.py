"""Partitions of a pretended network: who cannot reach whom, in both directions or in one, and whether it is told."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Partition:
    """A group of processes that the others do not hear.

    apart: their names. symmetric: they do not hear the others either. notified: connections across it break and dials
    fail, at those whose messages do not get through; else messages are lost without a word and connections stay.
    """

    apart: frozenset[str]
    symmetric: bool = True
    notified: bool = True

    def blocks(self, sender: str, receiver: str) -> bool:
        """Whether what a process of one name sends does not get to the other."""
        if (sender in self.apart) == (receiver in self.apart):
            return False
        return self.symmetric or sender in self.apart


@dataclass(slots=True)
class Partitions:
    """Those that there are at the moment. dropped_s: when a message to or from each process was lost last."""

    present: list[Partition] = field(default_factory=list)
    dropped_s: dict[str, float] = field(default_factory=dict)

    def between(self, sender: str, receiver: str) -> Partition | None:
        """The one that keeps messages from the receiver; one that is told of goes before a silent one."""
        found = [each for each in self.present if each.blocks(sender, receiver)]
        return max(found, key=lambda each: each.notified, default=None)

    def reach(self, one: str, other: str) -> bool:
        """Whether two processes of these names hear each other."""
        return not self.present or (self.between(one, other) is None and self.between(other, one) is None)

    def silent(self, one: str, other: str) -> bool:
        """Whether they do not, and neither learns so."""
        found = [each for each in (self.between(one, other), self.between(other, one)) if each is not None]
        return bool(found) and not any(each.notified for each in found)

    def drop(self, sender: str, receiver: str, now_s: float) -> None:
        """A message between the two is lost."""
        self.dropped_s[sender] = self.dropped_s[receiver] = now_s

    def heal(self, partition: Partition) -> None:
        """It is over."""
        self.present = [each for each in self.present if each is not partition]
