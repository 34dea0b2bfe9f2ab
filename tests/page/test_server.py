"""The server of the page answers those who may ask, and nothing else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from swarmflow.errors import DataError, NetworkError
from swarmflow.page import server as page_server
from swarmflow.page.recording import Recording
from swarmflow.page.server import CONNECTIONS_MAX, HEAD_BYTES_MAX, PageServer
from swarmflow.runtime.operations.watching import LiveFeed
from swarmflow.view.watching import Question
from tests.page.views import PretendedRun
from tests.unread import dropped


async def asked(port: int, head: str) -> tuple[int, dict[str, str], bytes]:
    """The status, the headers and the body of the answer to a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode("latin-1"))
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    top, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = top.decode("latin-1").split("\r\n")
    return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


def get(path: str, host: str = "localhost:1", method: str = "GET") -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"


@pytest.mark.asyncio
async def test_it_serves_the_page_and_the_run_and_lets_nothing_else_load() -> None:
    server = PageServer(PretendedRun())
    port = await server.start("127.0.0.1", 0)
    try:
        status, headers, body = await asked(port, get("/"))
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert b"<script>" not in body, "scripts are files: the policy allows no other"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        for name in ("page.css", "main.js", "icon.svg"):
            assert (await asked(port, get(f"/{name}")))[0] == 200
        run = json.loads((await asked(port, get("/api/run?after=0")))[2])
        assert (run["mode"], run["view"]["run"]) == ("live", "pretended")
        steps = json.loads((await asked(port, get("/api/steps?after=38")))[2])["steps"]
        assert [step["step"] for step in steps] == [38, 39]
        assert (await asked(port, get("/api/recording")))[0] == 404
    finally:
        server.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (get("/", host="evil.example"), 421),
        (get("/", host="evil.example:8080"), 421),
        (get("/", host="localhost.evil.example"), 421),
        (get("/", host="proxy.example"), 200),
        (get("/", host="192.168.1.7:80"), 200),
        (get("/", host="[::1]:80"), 200),
        ("GET / HTTP/1.1\r\n\r\n", 421),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 421),
        (get("/", method="POST"), 405),
        (get("/", method="DELETE"), 405),
        ("nonsense\r\n\r\n", 400),
        (get("/api/run?after=x"), 400),
        (get("/http://["), 404),
        (get("http://["), 400),
        (get("/../server.py"), 404),
        (get("/%2e%2e/server.py"), 404),
        (get("//etc/passwd"), 404),
        (get("/__init__.py"), 404),
        ("GET / HTTP/1.1\r\nHost: localhost\r\n" + "a: b\r\n" * HEAD_BYTES_MAX + "\r\n", 431),
    ],
)
async def test_whoever_may_not_ask_is_refused(head: str, status: int) -> None:
    server = PageServer(PretendedRun(), ["proxy.example"])
    port = await server.start("127.0.0.1", 0)
    try:
        answered, headers, _ = await asked(port, head)
        assert answered == status
        assert "content-security-policy" in headers
    finally:
        server.close()


@pytest.mark.asyncio
async def test_more_connections_than_it_takes_are_refused_and_a_mistake_ends_nothing() -> None:
    class Broken(PretendedRun):
        async def run(self, after: int) -> bytes:
            raise ZeroDivisionError

    server = PageServer(Broken())
    port = await server.start("127.0.0.1", 0)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
    try:
        assert (await asked(port, get("/")))[0] == 503
        for _, writer in silent:
            writer.close()
        while (await asked(port, get("/")))[0] == 503:
            await asyncio.sleep(0)  # until the server has noticed that they are gone
        assert (await asked(port, get("/api/run")))[0] == 500
        assert (await asked(port, get("/")))[0] == 200
    finally:
        server.close()


@pytest.mark.asyncio
async def test_an_answer_that_is_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Long(PretendedRun):
        async def run(self, after: int) -> bytes:
            return bytes(1 << 24)

    monkeypatch.setattr(page_server, "SEND_S", 0.1)
    server = PageServer(Long())
    port = await server.start("127.0.0.1", 0)
    try:
        await dropped(port, get("/api/run").encode())
        assert not server._connections
    finally:
        server.close()


@pytest.mark.asyncio
async def test_a_port_that_is_taken_and_a_host_that_is_none_are_one_line() -> None:
    first, second = PageServer(PretendedRun()), PageServer(PretendedRun())
    port = await first.start("127.0.0.1", 0)
    try:
        with pytest.raises(NetworkError, match="choose another port"):
            await second.start("127.0.0.1", port)
        with pytest.raises(NetworkError, match=r"cannot serve the page on a\.\.b:0"):
            await second.start("a..b", 0)
    finally:
        first.close()


@pytest.mark.asyncio
async def test_the_log_of_a_run_is_a_recording_of_its_curves(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    lines = [{"step": 0, "loss": 5.0, "time": 100.0, "seconds": 2.0}, {"step": 1, "loss": 4.0, "time": 103.0}]
    log.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"step": 1, "loss": 3.0, "time": 109.0}]))
    recorded = json.loads(await Recording.of_steps(log).recording())
    assert (recorded["duration_s"], recorded["frames"]) == (11.0, [])
    assert [(step["step"], step["loss"], step["time"]) for step in recorded["steps"]] == [(0, 5.0, 2.0), (1, 3.0, 11.0)]


@pytest.mark.asyncio
async def test_a_line_that_a_crash_left_half_written_is_no_step(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 0, "time": 10.0}\n{"step": 1, "ti')
    recorded = json.loads(await Recording.of_steps(log).recording())
    assert [step["step"] for step in recorded["steps"]] == [0]


@pytest.mark.asyncio
async def test_of_a_log_with_a_roll_back_the_last_lines_count(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    steps = (0, 1, 2, 3, 1, 2)
    log.write_text("".join(json.dumps({"step": step, "time": 10.0 + n}) + "\n" for n, step in enumerate(steps)))
    recorded = json.loads(await Recording.of_steps(log).recording())
    assert [(step["step"], step["time"]) for step in recorded["steps"]] == [(0, 0.0), (1, 4.0), (2, 5.0)]
    assert recorded["duration_s"] == 5.0


@pytest.mark.asyncio
async def test_a_feed_has_a_name_of_its_own_for_viewers_of_a_former_one() -> None:
    async def ask(question: Question) -> bytes:
        raise NetworkError("no answer")

    first, second = LiveFeed(ask), LiveFeed(ask)
    names = [json.loads(await feed.run(after))["feed"] for feed, after in ((first, 0), (first, 5), (second, 0))]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize(
    "text",
    [
        *("", "x\n", "{}\n", "[1]\n"),
        *(f"{json.dumps({'step': 1, 'time': 1, **wrong})}\n" for wrong in ({"step": "x"}, {"seconds": "x"})),
        '{"step": 1e999, "time": 1}\n',
    ],
)
def test_what_is_no_log_and_no_recording_is_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    for read in (Recording.of_steps, Recording.of_file):
        with pytest.raises(DataError, match=str(file)):
            read(file)
        with pytest.raises(DataError, match="cannot be read"):
            read(tmp_path / "missing")
