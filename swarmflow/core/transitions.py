"""Transition tables: the states of a machine, and for each state those that may follow it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

State = TypeVar("State", bound=StrEnum)


class IllegalTransition(Exception):
    """A machine was about to enter a state that its table does not allow after the present one; it did not."""


@dataclass(frozen=True)
class Transitions(Generic[State]):
    """The states of one machine as data: its code moves by this table alone, and `docs/states.md` is drawn from it.

    Raises ValueError where the table lacks a state of the enum, or has one that cannot be reached from `initial`.
    """

    machine: str  # what the states belong to, as the title of its diagram: "step"
    initial: State
    table: Mapping[State, Mapping[State, str]]  # from -> to -> the event that leads there

    def __post_init__(self) -> None:
        states = set(type(self.initial))
        if lacking := states - self.table.keys():
            raise ValueError(f"{self.machine}: no row for {', '.join(sorted(lacking))}")
        reached, waiting = {self.initial}, [self.initial]
        while waiting:
            following = self.table[waiting.pop()].keys() - reached
            reached |= following
            waiting += following
        if lost := states - reached:
            raise ValueError(f"{self.machine}: {', '.join(sorted(lost))} cannot be reached from {self.initial}")

    def move(self, state: State, to: State) -> State:
        """Return `to`. Raises IllegalTransition where the table has no transition from `state` to it."""
        if to not in self.table[state]:
            following = ", ".join(self.table[state]) or "nothing: it is final"
            raise IllegalTransition(f"{self.machine}: {to} cannot follow {state}, only {following}")
        return to
