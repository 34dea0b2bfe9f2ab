"""A trainer's own microbatches: sent to stage 0, awaited, and started over where nothing else helps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.messages import (
    BaselineAbandon,
    BaselineAccepted,
    BaselineBackward,
    BaselineDenied,
    BaselineMessage,
    BaselineOpen,
    BaselineRoom,
    BaselineRouted,
    Broken,
    Computed,
    Learnt,
    Path,
    Trip,
)
from swarmflow.baselines.next_hop import NextHop
from swarmflow.baselines.sender import Repair, Sender
from swarmflow.core.source import shares
from swarmflow.core.types import ProcessId


@dataclass(slots=True)
class BaselineSource:
    """Microbatch i of an iteration is that of trainer i mod (number of trainers), as in swarmflow."""

    hands: BaselineRuntime
    leader: ProcessId
    microbatches: int
    next_hop: NextHop
    repair: Repair
    sender: Sender = field(init=False)
    said: BaselineOpen | None = None
    _began_s: dict[int, float] = field(default_factory=dict)
    _homeless: list[Trip] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sender = Sender(self.hands, 0, self.next_hop, self.repair, self._passed, self._restart, self._restart)

    def open(self, said: BaselineOpen) -> None:
        """An iteration begins, or goes on with others."""
        before, self.said = self.said, said
        if before is not None and before.iteration == said.iteration:
            self.sender.revise(said)
            homeless, self._homeless = self._homeless, []
            for trip in homeless:
                self._send(replace(trip, line=self._line(trip)))
            return
        self.sender.open(said)
        self._began_s.clear()
        self._homeless.clear()
        for index in shares(said.trainers, self.microbatches).get(self.hands.me, ()):
            line = said.given[index] if said.given else -1
            self._began_s[index] = self.hands.now_s
            self._send(Trip(said.iteration, index, 0, line))

    def heard(self, sender: ProcessId, word: BaselineMessage) -> None:
        """Stage 0 answers, or somebody further down says that the way is broken."""
        match word:
            case BaselineAccepted():
                self.sender.accepted(sender, word)
            case BaselineDenied():
                self.sender.denied(sender, word)
            case BaselineRoom():
                self.sender.room(sender)
            case Computed():
                self.sender.computed(sender, word.trip)
            case BaselineRouted():
                self.sender.routed(sender, word)
            case BaselineBackward():
                if self.sender.returned(sender, word.trip):
                    seconds = self.hands.now_s - self._began_s[word.trip.index]
                    self.hands.send(self.leader, Learnt(word.trip, word.path, seconds))
            case Broken():
                self._restart(word.trip)

    def lost(self, process: ProcessId) -> None:
        """A peer is dead."""
        if self.said is not None:
            lines = tuple(tuple(None if p == process else p for p in line) for line in self.said.lines)
            self.said = replace(self.said, lines=lines)
        self.sender.lost(process)

    def _send(self, trip: Trip) -> None:
        if self.repair is Repair.LINE and trip.line < 0:
            self._homeless.append(trip)
            return
        size = sum(self.hands.tensor_bytes(0, kind) for kind in ("tokens", "targets"))
        self.sender.offer(trip, self.hands.me, size)
        self.sender.ready(trip)

    def _passed(self, trip: Trip, path: Path) -> None:
        """Who has it now is known from the sender where it is needed."""

    def _restart(self, trip: Trip) -> None:
        """Start a microbatch over; those who hold it are told."""
        out = self.sender.outs.get(trip)
        if out is None or out.returned:
            return
        path = out.path
        self.sender.drop(trip)
        for process in path[1:]:
            self.hands.send(process, BaselineAbandon(trip))
        self.hands.count("retries")
        self.hands.count("microbatches_restarted")
        again = replace(trip, turn=trip.turn + 1)
        self._send(replace(again, line=self._line(again)) if self.repair is Repair.LINE else again)

    def _line(self, trip: Trip) -> int:
        """The whole pipeline that has the fewest of the own microbatches; -1: none is whole."""
        assert self.said is not None
        whole = [number for number, line in enumerate(self.said.lines) if None not in line]
        given = Counter(out.trip.line for out in self.sender.outs.values() if not out.returned)
        return min(whole, key=lambda number: (given[number], number), default=-1)
