"""Partitions of a pretended network: which messages are lost, in both directions or in one, silently or not."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Partition:
    """A group of processes whose messages do not get to the others."""

    apart: frozenset[str]  # the names of the group
    symmetric: bool = True  # nor do the messages of the others get to the group
    notified: bool = True  # connections break and dials fail at the senders; else messages are lost silently

    def blocks(self, sender: str, receiver: str) -> bool:
        """Return whether messages from one process to the other are lost."""
        if (sender in self.apart) == (receiver in self.apart):
            return False
        return self.symmetric or sender in self.apart


@dataclass(slots=True)
class Partitions:
    """The present partitions of a network."""

    present: list[Partition] = field(init=False, default_factory=list)
    dropped_s: dict[str, float] = field(init=False, default_factory=dict)  # by name, when a message was lost last

    def between(self, sender: str, receiver: str) -> Partition | None:
        """Return the partition that blocks messages to the receiver; one with notice goes before a silent one."""
        found = [each for each in self.present if each.blocks(sender, receiver)]
        return max(found, key=lambda each: each.notified, default=None)

    def reach(self, one: str, other: str) -> bool:
        """Return whether two processes of these names reach each other, in both directions."""
        return not self.present or (self.between(one, other) is None and self.between(other, one) is None)

    def silent(self, one: str, other: str) -> bool:
        """Return whether messages between the two are lost, and neither notices."""
        found = [each for each in (self.between(one, other), self.between(other, one)) if each is not None]
        return bool(found) and not any(each.notified for each in found)

    def drop(self, sender: str, receiver: str, now_s: float) -> None:
        """Record that a message between the two is lost, in a partition or on a connection that stays."""
        self.dropped_s[sender] = self.dropped_s[receiver] = now_s

    def heal(self, partition: Partition) -> None:
        """End a partition."""
        self.present = [each for each in self.present if each is not partition]
