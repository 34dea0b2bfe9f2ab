"""A live picture below lines that scroll: no line is lost, whatever happens to the picture."""

from __future__ import annotations

import sys
import threading

import pytest
from rich.console import RenderableType
from rich.text import Text

from swarmflow.terminal.screen import LiveScreen
from tests.terminal.emulator import Terminal

DEADLINE_S = 30.0


def printed(terminal: Terminal) -> list[str]:
    return [line for line in terminal.lines() if line]


def test_lines_of_many_threads_appear_whole_and_in_their_order() -> None:
    terminal = Terminal()
    screen = LiveScreen(lambda width, rows: Text("picture"), terminal, every_s=0.001)
    screen.start()

    def write(thread: int) -> None:
        for number in range(50):
            screen.print_line(Text(f"line {thread} {number} [bold]"))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    screen.stop()
    lines = printed(terminal)
    for number in range(4):
        own = [line for line in lines if line.startswith(f"line {number} ")]
        assert own == [f"line {number} {count} [bold]" for count in range(50)]
    assert len(lines) == 4 * 50  # and the picture is gone
    assert terminal.getvalue().count("picture") > 1
    assert terminal.cursor_is_shown


def test_a_picture_that_fails_ends_and_the_lines_go_on() -> None:
    terminal, drawn = Terminal(), threading.Event()

    def draw(width: int, rows: int) -> RenderableType:
        drawn.set()
        raise RuntimeError("a mistake")

    screen = LiveScreen(draw, terminal, every_s=0.001)
    screen.start()
    assert drawn.wait(DEADLINE_S)
    screen.print_line(Text("line after it"))
    screen.stop()
    assert printed(terminal) == ["the live view ends, the process goes on: RuntimeError: a mistake", "line after it"]
    assert terminal.cursor_is_shown


def test_what_others_print_appears_above_it_and_is_neutralised(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    screen = LiveScreen(lambda width, rows: Text("picture"), terminal)
    screen.start()
    print("line of a library \x1b[31mred\x1b[0m \x07\nline in two ", end="")
    print("parts")
    print("line 10%\rline 90%\n", end="")
    print("line without an end", end="")
    screen.stop()
    assert sys.stdout is terminal
    assert printed(terminal) == ["line of a library red", "line in two parts", "line 90%", "line without an end"]


def test_a_long_line_is_left_to_the_terminal_to_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    screen = LiveScreen(lambda width, rows: Text("x" * width), terminal)
    screen.start()
    screen.print_line(Text("line " + "word " * 100 + "end"))
    screen.stop()
    assert printed(terminal) == ["line " + "word " * 100 + "end"]
