"""The page's server: what it serves, to whom, and what it refuses."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest

from swarmflow.errors import NetworkError
from swarmflow.page import server as server_module
from swarmflow.page.answer import JSON, Answer
from swarmflow.page.request import RefusedError, parse_request
from swarmflow.page.server import PageServer

DEADLINE_S = 10.0


class CountingFeed:
    """A feed that counts how often it is asked, and answers when it may."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: Exception | None = None
        self.recorded: bytes | None = None

    async def _answer(self, name: str, after: int) -> bytes:
        self.asked.append((name, after))
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return json.dumps({name: after}).encode()

    async def run(self, after: int) -> bytes:
        return await self._answer("run", after)

    async def steps(self, after: int) -> bytes:
        return await self._answer("steps", after)

    async def recording(self) -> bytes | None:
        return self.recorded


@asynccontextmanager
async def serving(feed: CountingFeed, *allowed: str) -> AsyncIterator[int]:
    server = PageServer(feed, allowed)
    try:
        yield await server.start("127.0.0.1", 0)
    finally:
        server.close()


class Reply:
    def __init__(self, status: int, fields: Mapping[str, str], body: bytes) -> None:
        self.status, self.fields, self.body = status, fields, body


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *rows = head.strip().split("\r\n")
    fields = {name.lower(): value for name, _, value in (row.partition(": ") for row in rows)}
    return Reply(int(line.split(" ")[1]), fields, await reader.readexactly(int(fields["content-length"])))


async def send(port: int, head: str) -> Reply:
    """Send the bytes of a request and return the reply."""
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode("latin-1"))
        try:
            return await read_reply(reader)
        finally:
            writer.close()


async def get(port: int, path: str, host: str = "localhost", *rows: str) -> Reply:
    return await send(port, "\r\n".join([f"GET {path} HTTP/1.1", f"Host: {host}", *rows, "", ""]))


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the server closes the connection."""
    async with asyncio.timeout(DEADLINE_S):
        return await reader.read()


@pytest.mark.asyncio
async def test_page_and_its_files_are_served_with_a_policy_that_forbids_all_else() -> None:
    async with serving(CountingFeed()) as port:
        page = await get(port, "/")
        assert page.status == 200
        assert page.fields["content-type"] == "text/html; charset=utf-8"
        named = re.findall(r'(?:src|href)="([^"#]+)"', page.body.decode())
        assert {name.rpartition(".")[2] for name in named} == {"css", "js", "svg"}
        for name in named:
            assert (await get(port, f"/{name}")).status == 200
    policy = page.fields["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.fields["x-content-type-options"] == "nosniff"
    assert page.fields["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in page.fields


@pytest.mark.asyncio
async def test_a_browser_that_has_the_newest_file_is_not_sent_it_again() -> None:
    async with serving(CountingFeed()) as port:
        first = await get(port, "/main.js")
        again = await get(port, "/main.js", "localhost", f"If-None-Match: {first.fields['etag']}")
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:443", "page.example:80"]
)
@pytest.mark.asyncio
async def test_own_names_are_answered(host: str) -> None:
    async with serving(CountingFeed(), "Page.example") as port:
        assert (await get(port, "/api/run", host)).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.7", "0.0.0.0", "", "localhost:"),
        *("localhost@evil.example", "[::1", "localhost evil.example", "evil.example:80:80"),
    ],
)
@pytest.mark.asyncio
async def test_names_of_other_servers_are_refused(host: str) -> None:
    """A site whose name is bound to this address by DNS asks with its own name."""
    feed = CountingFeed()
    async with serving(feed) as port:
        assert (await get(port, "/api/run", host)).status == 421
    assert feed.asked == []


def test_a_server_for_others_accepts_addresses_but_no_unknown_name() -> None:
    def ask(host: str) -> str:
        head = f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        return parse_request(head, {"localhost"}, any_address=True).path

    assert ask("192.168.1.9:8080") == "/"
    with pytest.raises(RefusedError, match="another server"):
        ask("evil.example")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT"])
@pytest.mark.asyncio
async def test_all_methods_but_get_are_refused(method: str) -> None:
    async with serving(CountingFeed()) as port:
        reply = await send(port, f"{method} /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
    assert (reply.status, reply.fields["allow"], reply.fields["connection"]) == (405, "GET", "close")


@pytest.mark.parametrize(
    "head",
    [
        "hello\r\n\r\n",
        "GET /\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: localhost\r\n\r\n",
        "GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nX : y\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
        "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /api/run?after=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /api/run?after=1e9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /api/run?after=1&after=2 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        f"GET /api/run?after={'9' * 400} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        f"GET /api/run?{'a=1&' * 50} HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
@pytest.mark.asyncio
async def test_malformed_requests_are_refused(head: str) -> None:
    feed = CountingFeed()
    async with serving(feed) as port:
        assert (await send(port, head)).status == 400
    assert feed.asked == []


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/../server.py",
            "/..%2fserver.py",
            "/%2e%2e/server.py",
            "/static/../../server.py",
            "/server.py",
            "/etc/passwd",
        ),
        *("//etc/passwd", "/main.js/", "/./main.js", "/index.html/..", "/main.js%00.html", "/\\..\\server.py", "/api"),
    ],
)
@pytest.mark.asyncio
async def test_no_path_leads_out_of_the_page(path: str) -> None:
    async with serving(CountingFeed()) as port:
        assert (await get(port, path)).status == 404


@pytest.mark.asyncio
async def test_a_header_that_is_too_long_is_refused() -> None:
    async with serving(CountingFeed()) as port:
        assert (await get(port, "/", "localhost", f"X: {'a' * 20_000}")).status == 431
        assert (await get(port, "/", "localhost", *(f"X{number}: 1" for number in range(100)))).status == 431
        assert (await get(port, "/")).status == 200


@pytest.mark.asyncio
async def test_a_viewer_who_sends_slowly_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEAD_S", 0.2)
    async with serving(CountingFeed()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: local")
        assert await read_to_end(reader) == b""
        writer.close()


@pytest.mark.asyncio
async def test_a_viewer_who_reads_nothing_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of an answer of many megabytes is neither sent nor kept for it."""
    monkeypatch.setattr(server_module, "SEND_S", 0.2)
    feed = CountingFeed()
    feed.recorded = bytes(64 << 20)
    async with serving(feed) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a transport that reads
        writer.write(b"GET /api/recording HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while (await get(port, "/api/steps")).status == 200 and feed.asked.count(("steps", 0)) < 3:
            pass  # others are served all the while
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            async with asyncio.timeout(DEADLINE_S):
                await reader.readexactly(64 << 20)
        writer.close()


@pytest.mark.asyncio
async def test_viewers_beyond_the_limit_are_refused_until_another_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 2)
    async with serving(CountingFeed()) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in held:
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await read_reply(reader)).status == 200
        third, _ = await asyncio.open_connection("127.0.0.1", port)
        assert (await read_reply(third)).status == 503
        held[0][1].close()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                if (await read_reply(reader)).status == 200:
                    break
        for _, writer in held:
            writer.close()


@pytest.mark.asyncio
async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with serving(CountingFeed()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for after in (3, 4):
            writer.write(f"GET /api/steps?after={after} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            reply = await read_reply(reader)
            assert json.loads(reply.body) == {"steps": after}
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"Connection: close" in await read_to_end(reader)
        writer.close()


@pytest.mark.asyncio
async def test_many_viewers_cost_one_question_to_the_run() -> None:
    feed = CountingFeed()
    feed.may_answer.clear()
    async with serving(feed) as port:
        leaves = asyncio.create_task(get(port, "/api/run?after=7"))
        while not feed.asked:
            await asyncio.sleep(0)
        viewers = [asyncio.create_task(get(port, "/api/run?after=7")) for _ in range(50)]
        leaves.cancel()  # whoever asked first leaves: the others get the answer all the same
        feed.may_answer.set()
        replies = await asyncio.gather(*viewers)
    assert {reply.body for reply in replies} == {b'{"run": 7}'}
    assert feed.asked == [("run", 7)]


@pytest.mark.asyncio
async def test_a_run_that_does_not_answer_is_told_of_in_one_line() -> None:
    feed = CountingFeed()
    async with serving(feed) as port:
        feed.error = NetworkError("no trainer answers")
        reply = await get(port, "/api/run?after=1")
        assert (reply.status, reply.body) == (503, b"no trainer answers\n")
        feed.error = RuntimeError("a secret of the process")
        reply = await get(port, "/api/run?after=2")
        assert reply.status == 500
        assert b"secret" not in reply.body
        feed.error = None
        assert (await get(port, "/api/run?after=3")).status == 200


@pytest.mark.asyncio
async def test_a_live_run_has_no_recording() -> None:
    feed = CountingFeed()
    async with serving(feed) as port:
        assert (await get(port, "/api/recording")).status == 404


def test_an_answer_is_compressed_once() -> None:
    answer = Answer(JSON, b"x" * 5000)
    packed = answer.packed(zipped=True)
    assert gzip.decompress(packed) == answer.body
    assert answer.packed(zipped=True) is packed
    assert answer.packed(zipped=False) is answer.body
    assert b"Content-Encoding: gzip" in answer.head(len(packed), zipped=True, keep_alive=True)
    assert answer.status is HTTPStatus.OK


@pytest.mark.asyncio
async def test_a_port_that_is_taken_is_one_clear_line() -> None:
    async with serving(CountingFeed()) as port:
        with pytest.raises(
            NetworkError, match=rf"cannot serve the page on 127.0.0.1:{port}: .*choose another port"
        ) as error:
            await PageServer(CountingFeed()).start("127.0.0.1", port)
    assert "\n" not in str(error.value)
