"""One question of those who watch a run, and its answer: the view, and what has happened since the last question."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swarmflow.view.timeline import EVENTS_MAX, STEPS_MAX, Timeline


@dataclass(frozen=True, slots=True)
class Question:
    """What the asker has already."""

    timeline: str = ""  # the name of the timeline that the numbers are of
    events: int = 0  # the number of the last event
    steps: int = 0  # the number of the last step


def answer_to(question: Question, view: dict[str, Any], timeline: Timeline) -> dict[str, Any]:
    """Return the view, and the events and steps that the asker lacks; all of them if it knows another timeline."""
    events, steps = (question.events, question.steps) if question.timeline == timeline.name else (0, 0)
    return {
        "timeline": timeline.name,
        "view": view,
        "events": timeline.events_after(events),
        "steps": timeline.steps_after(steps),
    }


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
