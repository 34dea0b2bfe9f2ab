"""A pretended run for the page: views, events and steps as a leader makes them, in time that a test moves on."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

TICK_S = 0.1
TENSOR_BYTES = 1 << 18
ALPHABET = "abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"


@dataclass(slots=True)
class FakePeer:
    """One peer: what its entry in a view is made of."""

    id: str
    name: str
    stage: int
    address: str
    reach: str
    speed: float
    capacity: int
    phase: str = "serving"
    microbatches: int = 0
    compute_s: float = 0.0
    wasted_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    memory_bytes: int = 0
    loading_bytes: int = 0
    loading_total_bytes: int = 0


@dataclass(slots=True)
class FakeMicrobatch:
    """One microbatch of the step. leg: its position on the way forward and back; left_s: until it moves on."""

    index: int
    path: list[FakePeer] = field(default_factory=list)
    leg: int = -1
    left_s: float = 0.0


class FakeRun:
    """A run whose peers compute, die and join as a test wants."""

    def __init__(
        self, stages: int = 3, peers: int = 10, microbatches: int = 24, steps: int = 400, seed: int = 7
    ) -> None:
        self.random = random.Random(seed)
        self.stages, self.microbatches, self.steps = stages, microbatches, steps
        self.now_s = 1_767_225_600.0
        self.peers: list[FakePeer] = []
        self.lines: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.step, self.durable, self.opened_s = 0, 0, self.now_s
        self.waiting, self.waiting_since_s, self.retries = "", 0.0, 0
        self.repairs: dict[int, tuple[str, Counter[str]]] = {}
        for number in range(peers):
            self.join(number % stages, loaded=True)
        self.trainers = [
            {"id": f"{self._letters(6)}.{self._letters(4).lower()}", "name": self._letters(46), "leads": leads}
            for leads in (True, False)
        ]
        self.flights: list[FakeMicrobatch] = []
        self._open()

    def _letters(self, count: int) -> str:
        return "".join(self.random.choice(ALPHABET) for _ in range(count))

    def join(self, stage: int, *, loaded: bool = False, identity: str = "", name: str = "") -> FakePeer:
        """Add a peer, which loads its stage first unless it has done so already."""
        draw = self.random
        incarnation = f"{draw.randrange(1 << 16):04x}"
        reach = draw.choice(("public", "public", "punched", "relay", "local"))
        peer = FakePeer(
            id=identity or f"{self._letters(6)}.{incarnation}",
            name=name or f"Qm{self._letters(44)}",
            stage=stage,
            address="" if reach == "relay" else f"10.{draw.randrange(9)}.{draw.randrange(250)}.{draw.randrange(250)}",
            reach=reach,
            speed=draw.uniform(400, 1600),
            capacity=4,
            memory_bytes=draw.randrange(600, 1500) << 20,
        )
        if not loaded:
            peer.phase, peer.loading_total_bytes = "loading", 320 << 20
            self.tell("loading", f"{peer.id} loads stage {stage} from two peers", peer=peer.id, stage=stage)
        self.peers.append(peer)
        return peer

    def tell(self, kind: str, text: str, *, level: str = "info", peer: str = "", stage: int = -1) -> None:
        """Add an event."""
        event = {"seq": len(self.events) + 1, "time": self.now_s, "kind": kind, "level": level, "text": text}
        self.events.append({**event, "peer": peer, "stage": stage, "step": self.step})

    def serving(self, stage: int) -> list[FakePeer]:
        """Return the peers that compute for a stage."""
        return [peer for peer in self.peers if peer.stage == stage and peer.phase == "serving"]

    def held_by(self, peer: FakePeer) -> int:
        """Return how many microbatches of a peer have no gradient from it yet."""
        return sum(peer in flight.path and not self.is_done(flight, peer.stage) for flight in self.flights)

    def busiest(self, stage: int) -> FakePeer:
        """Return the peer of a stage that holds most microbatches."""
        return max(self.serving(stage), key=self.held_by)

    def kill(self, peer: FakePeer) -> None:
        """Have a peer die; others do again what it had not given back."""
        self.peers.remove(peer)
        text = f"{peer.id} is gone: its connection broke and 2 neighbours cannot reach it"
        self.tell("died", text, level="warning", peer=peer.id, stage=peer.stage)
        lost = [flight for flight in self.flights if peer in flight.path and not self.is_done(flight, peer.stage)]
        self.retries += len(lost)
        others = self.serving(peer.stage)
        for flight in lost:
            if not others:
                flight.path, flight.leg, flight.left_s = [], -1, 0.0
                continue
            heir = self.random.choice(others[:2])
            flight.path[peer.stage] = heir
            flight.left_s += 1.0
            if peer.stage not in self.repairs:
                self.repairs[peer.stage] = peer.id, Counter()
                text = f"{heir.id} takes over from {peer.id} on stage {peer.stage}, from bytes that the neighbours kept"
                self.tell("repaired", text, peer=heir.id, stage=peer.stage)
            self.repairs[peer.stage][1][heir.id] += 1

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / TICK_S)):
            self._tick()

    def _tick(self) -> None:
        self.now_s += TICK_S
        for peer in self.peers:
            self._load(peer)
        empty = [stage for stage in range(self.stages) if not self.serving(stage)]
        waiting = f"a peer for stage {empty[0]}" if empty else ""
        if waiting != self.waiting:
            self.waiting, self.waiting_since_s = waiting, self.now_s
            if waiting:
                self.tell("waiting", f"the run waits for {waiting}", level="warning", stage=empty[0])
            self.opened_s = self.now_s
        if self.step >= self.steps or waiting:
            return
        load = Counter(id(flight.path[-1]) for flight in self.flights if flight.path and flight.leg < self.stages)
        for flight in self.flights:
            self._move(flight, load)
        if all(self.is_done(flight, 0) for flight in self.flights):
            self._commit()

    def _load(self, peer: FakePeer) -> None:
        if peer.phase == "loading":
            peer.loading_bytes = min(peer.loading_total_bytes, peer.loading_bytes + (5 << 20))
            if peer.loading_bytes == peer.loading_total_bytes:
                peer.phase, peer.loading_bytes, peer.loading_total_bytes = "serving", 0, 0
                self.tell("serving", f"{peer.id} serves stage {peer.stage}", peer=peer.id, stage=peer.stage)

    def is_done(self, flight: FakeMicrobatch, stage: int) -> bool:
        """Return whether a microbatch has its gradient at a stage."""
        return flight.leg >= 2 * self.stages - 1 - stage

    def _move(self, flight: FakeMicrobatch, load: Counter[int]) -> None:
        """Let a microbatch go one hop on, if it is time and there is room."""
        flight.left_s -= TICK_S
        if flight.left_s > 0 or self.is_done(flight, 0):
            return
        if flight.leg < self.stages - 1:
            stage = flight.leg + 1
            free = [peer for peer in self.serving(stage) if load[id(peer)] < peer.capacity]
            if not free:
                return
            peer = min(free, key=lambda each: (load[id(each)] + self.random.random()) / each.speed)
            if flight.path:
                load[id(flight.path[-1])] -= 1
                flight.path[-1].sent_bytes += TENSOR_BYTES
            flight.path.append(peer)
            load[id(peer)] += 1
            peer.received_bytes += TENSOR_BYTES
        else:
            peer = flight.path[2 * self.stages - 2 - flight.leg]
            peer.microbatches += 1
            peer.sent_bytes += TENSOR_BYTES
        flight.leg += 1
        hop_s = self.random.uniform(0.7, 1.3) * 350 / peer.speed
        peer.compute_s += 0.7 * hop_s
        flight.left_s = hop_s

    def _commit(self) -> None:
        for stage, (dead, by) in self.repairs.items():
            names = ", ".join(f"{count} by {who}" for who, count in sorted(by.items()))
            text = f"{sum(by.values())} microbatches were done again on stage {stage} for {dead}: {names}"
            self.tell("repaired", text, stage=stage)
        self.repairs.clear()
        seconds = max(TICK_S, self.now_s - self.opened_s)
        noise = self.random.gauss(0, 0.035)
        loss = 1.9 + 3.6 * math.exp(-self.step / 90) + 0.35 * math.exp(-self.step / 12) + noise
        line: dict[str, Any] = {
            "step": self.step,
            "version": self.step + 1,
            "loss": round(loss, 4),
            "tokens": self.tokens,
        }
        line |= {
            "seconds": round(seconds, 3),
            "grad_norm": 1.2 + abs(noise),
            "lr": 3e-4,
            "microbatches": self.microbatches,
        }
        line |= {"peers": [len(self.serving(stage)) for stage in range(self.stages)], "retries": self.retries}
        line |= {"time": self.now_s, "seq": self.step + 1}
        if self.step % 20 == 19:
            line["validation_loss"] = round(loss + 0.08 + self.random.gauss(0, 0.01), 4)
        self.lines.append(line)
        self.step, self.retries, self.opened_s = self.step + 1, 0, self.now_s
        if self.step % 10 == 0:
            self.durable = self.step
            self.tell("checkpoint", f"version {self.step} is on disk")
        if self.step >= self.steps:
            self.tell("finished", f"all {self.steps} steps are committed; writing the model")
        self._open()

    @property
    def tokens(self) -> int:
        """Target tokens of a step."""
        return self.microbatches * 1024

    def _open(self) -> None:
        self.flights = [FakeMicrobatch(index) for index in range(self.microbatches)]

    def view(self) -> dict[str, Any]:
        """Return the present state, as docs/status.md describes it."""
        last = self.lines[-1] if self.lines else None
        recent = self.lines[-20:]
        pace_s = sum(line["seconds"] for line in recent) / len(recent) if recent else None
        finished = self.step >= self.steps
        state = {"phase": "finished" if finished else "gathering" if self.waiting else "running"}
        state["waiting_for"] = self.waiting or f"{sum(not self.is_done(f, 0) for f in self.flights)} hops"
        return {
            **state,
            "time": self.now_s,
            "run": "shakespeare",
            "run_id": "c0ffee",
            "waiting_s": self.now_s - self.waiting_since_s if self.waiting else 0.0,
            "step": self.step,
            "version": self.step,
            "durable_version": self.durable,
            "steps": self.steps,
            "loss": last["loss"] if last else None,
            "tokens_per_s": last["tokens"] / last["seconds"] if last else None,
            "step_seconds": last["seconds"] if last else None,
            "left_s": None if pace_s is None or self.waiting else pace_s * (self.steps - self.step),
            "microbatches": self.microbatches,
            "stages": [{"stage": stage, "peers": self._entries(stage)} for stage in range(self.stages)],
            "trainers": [{**trainer, "address": "10.0.0.2"} for trainer in self.trainers],
            "hops": [] if finished else self.hops(),
            "links": [] if finished else self._links(),
        }

    def _entries(self, stage: int) -> list[dict[str, Any]]:
        held = Counter(
            id(peer)
            for flight in self.flights
            for at, peer in enumerate(flight.path)
            if at == stage and not self.is_done(flight, at)
        )
        return [self._entry(peer, held[id(peer)]) for peer in self.peers if peer.stage == stage]

    def _entry(self, peer: FakePeer, held: int) -> dict[str, Any]:
        names = ("id", "name", "phase", "address", "capacity")
        counts = (
            "microbatches",
            "sent_bytes",
            "received_bytes",
            "memory_bytes",
            "loading_bytes",
            "loading_total_bytes",
        )
        summary = {name: getattr(peer, name) for name in (*counts, "reach", "compute_s", "wasted_s")}
        summary |= {"tokens": peer.microbatches * 1024, "used_s": peer.compute_s * 0.98 - peer.wasted_s}
        load = {"held": min(held, peer.capacity), "queued": held // 2, "speed": round(peer.speed, 1)}
        return {name: getattr(peer, name) for name in names} | load | {"version": self.step, "summary": summary}

    def hops(self) -> list[tuple[int, int, str, str]]:
        """Return where the microbatches are: forward as far as their trainer knows, done where a gradient is."""
        return [
            (flight.index, stage, peer.id, "done" if self.is_done(flight, stage) else "forward")
            for flight in self.flights
            for stage, peer in enumerate(flight.path)
            if stage < 2 or self.is_done(flight, stage) or stage == flight.leg
        ]

    def _links(self) -> list[tuple[str, str, int, float | None]]:
        counts: Counter[tuple[str, str]] = Counter()
        for flight in self.flights:
            names = [str(self.trainers[flight.index % 2]["id"]), *(peer.id for peer in flight.path)]
            counts.update(itertools.pairwise(names))
        return [
            (a, b, count, round(0.02 + (hash_of(a + b) % 80) / 1000, 3)) for (a, b), count in sorted(counts.items())
        ]


def hash_of(text: str) -> int:
    """Return a number that is the same in each process."""
    return sum(map(ord, text)) * 31


def record(run: FakeRun, seconds: float, frame_s: float = 0.5) -> dict[str, Any]:
    """Let time pass and return its recording, with times from 0."""
    began_s, frames = run.now_s, []
    first_event, first_step = len(run.events), len(run.lines)
    while run.now_s - began_s < seconds:
        frames.append({"t": round(run.now_s - began_s, 3), "view": run.view()})
        run.advance(frame_s)
    events = [{**event, "time": event["time"] - began_s} for event in run.events[first_event:]]
    steps = [{**line, "time": line["time"] - began_s} for line in run.lines[first_step:]]
    return {"duration_s": seconds, "frames": frames, "events": events, "steps": steps}
