"""One question of those who watch a run, and its answer: the view, and what has happened since the last question."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from swarmflow.view.timeline import EVENTS_MAX, STEPS_MAX, Timeline

BRIEF_STEPS = 400  # what a curve of a terminal can show
BRIEF_EVENTS = 16
BRIEF_PEERS = 8
IDLE_PHASES = ("waiting", "loading", "failed", "barred")


@dataclass(frozen=True, slots=True)
class Question:
    """What the asker has already."""

    timeline: str = ""  # the name of the timeline that the numbers are of
    events: int = 0  # the number of the last event
    steps: int = 0  # the number of the last step
    brief: int = 0  # 1: a few lines are all that is shown: numbers instead of peers, and the newest events and steps
    links: int = 0  # 1: the links between all peers are asked for, and nothing else


def answer_to(question: Question, view: dict[str, Any], timeline: Timeline) -> dict[str, Any]:
    """Return the view, and the events and steps that the asker lacks; all of them if it knows another timeline."""
    events, steps = (question.events, question.steps) if question.timeline == timeline.name else (0, 0)
    if question.brief:
        newest = [line for line in timeline.steps[-BRIEF_STEPS:] if line["seq"] > steps]
        return {
            "timeline": timeline.name,
            "view": view,
            "events": timeline.events_after(events)[-BRIEF_EVENTS:],
            "steps": newest,
        }
    return {
        "timeline": timeline.name,
        "view": view,
        "events": timeline.events_after(events),
        "steps": timeline.steps_after(steps),
    }


def brief(view: dict[str, Any]) -> dict[str, Any]:
    """Return a view without hops and links, and with the number of a stage's peers in each phase as `phases`.

    Of the peers it has the first that hold no stage: what is wrong with them may be what a run waits for.
    """
    room = BRIEF_PEERS
    stages = []
    for stage in view["stages"]:
        idle = [peer for peer in stage["peers"] if peer["phase"] in IDLE_PHASES][:room]
        room -= len(idle)
        phases = dict(Counter(peer["phase"] for peer in stage["peers"]))
        stages.append({"stage": stage["stage"], "phases": phases, "peers": idle})
    return {**view, "stages": stages, "hops": [], "links": []}


@dataclass(slots=True)
class Mirror:
    """The timeline of a run as others tell it, from one leader after another, under consecutive numbers of its own.

    What a new leader recorded before it led is in the mirror already, from the former one, or happened unseen.
    """

    own: Timeline = field(default_factory=lambda: Timeline("mirror"))
    view: dict[str, Any] | None = field(init=False, default=None)
    question: Question = field(init=False, default_factory=Question)  # the next one

    def take(self, answer: dict[str, Any]) -> None:
        """Add an answer. Raises ValueError where it is none: it comes from another process."""
        try:
            name, view = str(answer["timeline"]), answer["view"]
            events, steps = answer["events"][-EVENTS_MAX:], answer["steps"][-STEPS_MAX:]
            if not isinstance(view, dict):
                raise TypeError("the view is no object")
            events = [{**event, "seq": int(event["seq"]), "text": str(event["text"])} for event in events]
            steps = [_checked(line) for line in steps]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the answer of the swarm cannot be read ({error!r})") from None
        known = self.question if name == self.question.timeline else Question(name)
        for event in events:
            self.own.events.append({**event, "seq": self.own.next_number()})
        for line in steps:
            self.own.committed(line)
        self.view = view
        last_event = events[-1]["seq"] if events else known.events
        self.question = Question(name, last_event, steps[-1]["seq"] if steps else known.steps)


def _checked(line: dict[str, Any]) -> dict[str, Any]:
    """Return a step of another process with the fields that are read here. Raises KeyError, TypeError, ValueError."""
    return {**line, "seq": int(line["seq"]), "step": int(line["step"]), "time": float(line["time"])}
