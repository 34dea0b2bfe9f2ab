"""Views, events and steps of a run that nobody trains, for the page."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m</li>"


@dataclass
class PretendedRun:
    """A feed whose run stands at `step`, with so many peers on each stage."""

    stages: tuple[int, ...] = (2, 2, 2)
    step: int = 40
    microbatches: int = 12
    waiting: str = ""
    error: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    validated_every: int = 0  # steps; 0: never
    feed: str = "feed"
    asked: int = 0  # how often the view was asked for

    def add(self, kind: str, text: str, peer: str = "", stage: int = -1) -> None:
        event = {"seq": len(self.events) + 1, "time": 1.7e9 + self.step, "kind": kind, "level": "info", "text": text}
        self.events.append({**event, "peer": peer, "stage": stage, "step": self.step})

    def peers(self, stage: int) -> list[str]:
        names = (f"p{stage}n{number}.{1000 + number}" for number in range(self.stages[stage]))
        return [name for name in names if name not in self.dead]

    def view(self) -> dict[str, Any]:
        paths = [
            [self.peers(s)[i % len(self.peers(s))] for s in range(len(self.stages)) if self.peers(s)]
            for i in range(self.microbatches)
        ]
        turn = self.asked % (2 * len(self.stages))
        hops: list[tuple[int, int, str, str]] = []
        for index, path in enumerate(paths):
            at = (turn + index) % (2 * len(path) or 1)
            if at < len(path):
                hops.append((index, at, path[at], "forward"))
            else:
                hops += [(index, s, path[s], "done") for s in range(2 * len(path) - 1 - at, len(path))]
        links: dict[tuple[str, str], int] = {}
        for path in paths:
            for pair in zip(("trainer.1", *path), path, strict=False):
                links[pair] = links.get(pair, 0) + 1
        return {
            **{"time": 1.7e9 + self.asked, "run": "pretended", "run_id": "r1", "durable_version": self.step // 10 * 10},
            **{"phase": "gathering" if self.waiting else "running", "waiting_for": self.waiting, "waiting_s": 4.0},
            **{"step": self.step, "version": self.step, "steps": 100, "loss": 2.5, "tokens_per_s": 12345.6},
            **{"step_seconds": 1.5, "left_s": 90.0, "microbatches": self.microbatches},
            "stages": [
                {"stage": stage, "peers": [self._peer(name, number) for number, name in enumerate(self.peers(stage))]}
                for stage in range(len(self.stages))
            ],
            "trainers": [{"id": "trainer.1", "name": "t", "leads": True, "address": "127.0.0.1"}],
            "hops": hops,
            "links": [(a, b, count, 0.02) for (a, b), count in links.items()],
        }

    def _peer(self, name: str, number: int) -> dict[str, Any]:
        work = 100 + 10 * number
        return {
            **{"id": name, "name": HOSTILE, "phase": "serving", "version": self.step, "capacity": 4, "speed": 80.0},
            **{
                "held": (self.asked + number) % 5,
                "queued": number % 2,
                "address": f"10.0.{number // 250}.{number % 250}",
            },
            "summary": {
                **{"microbatches": work, "tokens": work * 4096, "compute_s": work * 0.3, "used_s": work * 0.29},
                **{"wasted_s": 0.4, "sent_bytes": work << 20, "received_bytes": work << 20, "metrics_port": 0},
                **{"memory_bytes": 900 << 20, "loading_bytes": 0, "loading_total_bytes": 0, "reach": "local"},
            },
        }

    def lines(self) -> list[dict[str, Any]]:
        return [
            {
                **{
                    "step": step,
                    "seq": step + 1,
                    "loss": 5.5 * math.exp(-step / 40) + 1,
                    "tokens": 4096,
                    "seconds": 1.5,
                },
                **{"grad_norm": 1.0, "lr": 1e-3, "peers": list(self.stages), "retries": 0, "time": 10.0 * step},
                "validation_loss": 2.0 if self.validated_every and step % self.validated_every == 1 else None,
            }
            for step in range(self.step)
        ]

    # --- the feed ---

    async def run(self, after: int) -> bytes:
        self.asked += 1
        events = [event for event in self.events if event["seq"] > after]
        answer = {"mode": "live", "feed": self.feed, "view": self.view(), "events": events, "error": self.error}
        return json.dumps(answer).encode()

    async def steps(self, after: int) -> bytes:
        return json.dumps({"steps": [line for line in self.lines() if line["seq"] > after]}).encode()

    async def recording(self) -> bytes | None:
        return None
