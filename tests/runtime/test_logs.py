"""The log of a process: plain, as JSON, and above a live view."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from swarmflow.activity import doing
from swarmflow.errors import ConfigError, NetworkError
from swarmflow.runtime.operations import logs
from swarmflow.runtime.operations.logs import JsonFormatter, PlainFormatter, chosen, run_logged, set_up_logging

HOSTILE = "\x1b[2Jgone\n12:00:00 forged \u202e[red]"
CLEAN = "\\x1b[2Jgone\\n12:00:00 forged \\u202e[red]"
log = logging.getLogger("swarmflow")


def test_a_plain_line_is_one_line_whatever_a_peer_gave_as_reason(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(PlainFormatter())
    log.warning("peer %s: %s", "ab[/]\x07", HOSTILE)
    [line] = capsys.readouterr().err.splitlines()
    assert line[9:] == f"peer ab[/]\\x07: {CLEAN}"


def test_a_traceback_cannot_pass_for_lines_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(PlainFormatter())
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("failed")
    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith("failed")
    assert all(line.startswith("    ") and line.isprintable() for line in others)
    assert "    12:00:00 forged \\u202e[red]" in others


def test_json_has_time_level_kind_message_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(JsonFormatter())
    log.warning("%s", HOSTILE, extra={"kind": "died", "fields": {"peer": "\x1b[1mab", "stage": 2}})
    log.info("plain")
    output = capsys.readouterr().err
    first, second = map(json.loads, output.splitlines())
    assert first.pop("time") > 1e9
    expected = {"level": "warning", "kind": "died", "message": CLEAN, "fields": {"peer": "\\x1b[1mab", "stage": 2}}
    assert first == expected
    assert second.keys() == {"time", "level", "message"}
    assert output.isascii()


def test_an_error_is_a_line_of_json_or_raised(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(view: object) -> int:
        raise NetworkError(f"nobody answers: {HOSTILE}")

    assert run_logged("json", "peer", fail) == NetworkError.exit_code
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (line["level"], line["message"]) == ("error", f"nobody answers: {CLEAN}")
    with pytest.raises(NetworkError):
        run_logged("plain", "peer", fail)


def test_a_live_view_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert chosen("auto") == "plain"
    with pytest.raises(ConfigError, match="no terminal"):
        chosen("live")


def test_what_takes_long_is_named_and_named_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LOOK_S", 0.001)
    monkeypatch.setattr(logs, "FIRST_S", 0.01)
    named = threading.Semaphore(0)

    class Named(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            if getattr(record, "kind", "") == "waiting":
                named.release()
            return True

    def work(view: object) -> int:
        log.addFilter(Named())
        with doing("joining the DHT", lambda: "1 of 3"):
            assert named.acquire(timeout=30)
            assert named.acquire(timeout=30)
        return 3

    filters = list(log.filters)
    try:
        assert run_logged("plain", "peer", work) == 3
    finally:
        log.filters[:] = filters
    first, second = capsys.readouterr().err.splitlines()[:2]
    assert first[9:] == "joining the DHT: 1 of 3 ..."
    assert second[9:].startswith("joining the DHT: 1 of 3, for ")
