"""The run as the demonstration watches it: its events, its page, and the recording that the page plays at the end."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from swarmflow.core.protocol.timeline import EventKind
from swarmflow.demo.recorder import FRAMES_MAX, Film, RunRecorder
from swarmflow.errors import NetworkError
from swarmflow.view.timeline import Timeline
from swarmflow.view.watching import Question, answer_to

DEADLINE_S = 30.0
BEGAN_S = 1.7e9


class Asked:
    """A run that commits a step each time it is asked, of which a peer dies in the third."""

    def __init__(self) -> None:
        self.timeline = Timeline("t")
        self.step = 0

    async def __call__(self, question: Question) -> bytes:
        self.step += 1
        now_s = BEGAN_S + self.step
        if self.step == 3:
            self.timeline.add(EventKind.DIED, "b is gone", self.step, now_s, peer="b", stage=0)
        peers = [{"id": "a"}] if self.step >= 3 else [{"id": "a"}, {"id": "b"}]
        view = {"time": now_s, "step": self.step, "stages": [{"stage": 0, "peers": peers}]}
        return json.dumps(answer_to(question, view, self.timeline)).encode()


def until(ready: Callable[[], Any]) -> None:
    """Wait until something is true, and fail after the deadline."""
    end_s = time.monotonic() + DEADLINE_S
    while not ready():
        assert time.monotonic() < end_s, "it has not come"


def add_all(news: list[Any], more: list[Any]) -> bool:
    """Add what is new; return whether there is anything."""
    news += more
    return bool(news)


def get(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
        found = json.load(answer)
    assert isinstance(found, dict)
    return found


def test_events_come_once_with_the_view_before_and_the_page_turns_to_the_recording() -> None:
    with RunRecorder(Asked()) as recorder:
        news: list[Any] = []
        until(lambda: add_all(news, recorder.news()))
        [(event, before)] = news
        assert event["text"] == "b is gone"
        assert before is not None
        assert [peer["id"] for peer in before["stages"][0]["peers"]] == ["a", "b"]
        live = get(f"{recorder.address}api/run?after=0")
        assert (live["mode"], live["error"]) == ("live", None)
        assert recorder.replay([{"step": 0, "time": BEGAN_S + 2.5}]) == [event]
        assert get(f"{recorder.address}api/run?after=0")["mode"] == "recording"
        recorded = get(f"{recorder.address}api/recording")
        assert [step["time"] for step in recorded["steps"]] == [1.5]
        assert [happened["time"] for happened in recorded["events"]] == [2.0]
        assert recorded["frames"][0]["t"] == 0.0
        assert recorder.news() == []
    with pytest.raises(OSError, match="refused"):
        get(f"{recorder.address}api/run?after=0")


def test_a_run_that_does_not_answer_has_no_view_and_its_reason_is_on_the_page() -> None:
    async def nobody(question: Question) -> bytes:
        raise NetworkError("nobody is there")

    with RunRecorder(nobody) as recorder:
        assert get(f"{recorder.address}api/run?after=0")["error"] == "nobody is there"
        assert (recorder.view, recorder.news()) == (None, [])
        assert recorder.replay([]) == []
        assert get(f"{recorder.address}api/recording") == {"duration_s": 0.0, "frames": [], "events": [], "steps": []}


def test_a_long_film_loses_every_second_frame_and_keeps_the_order() -> None:
    film = Film()
    for number in range(2 * FRAMES_MAX):
        film.add({"time": float(number)}, [])
    times = [frame["t"] for frame in film.recording([])["frames"]]
    assert FRAMES_MAX // 2 < len(times) <= FRAMES_MAX
    assert times == sorted(set(times))
    assert times[0] == 0.0
