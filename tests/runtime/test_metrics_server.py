"""The HTTP server of the metrics: pages that roles add, and the token that protects all of them."""

from __future__ import annotations

import base64
import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from swarmflow.errors import ConfigError, NetworkError
from swarmflow.runtime.execution import metrics_server
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.metrics_server import CONNECTIONS_MAX, TOKEN_VARIABLE, Page, may_read, read_token

TOKEN = "s3cret-token"


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    made = Metrics()
    yield made
    made.close()


def get(port: int, path: str, authorization: str = "", method: str = "GET") -> tuple[int, str, bytes]:
    """The status, content type and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={"Authorization": authorization} if authorization else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers["Content-Type"], body


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


def test_a_page_is_served_while_its_role_wants_it(metrics: Metrics) -> None:
    port = metrics.serve(0)
    with metrics.pages({"/targets": lambda: Page("application/json", b"[]")}):
        assert get(port, "/targets") == (200, "application/json", b"[]")
        assert get(port, "/targets", method="POST")[0] == 405
        assert get(port, "/other")[0] == 404
        assert b"/metrics /targets" in get(port, "/other")[2]
    assert get(port, "/targets")[0] == 404
    assert b"swarmflow_version" in get(port, "/metrics")[2]


@pytest.mark.parametrize(
    ("host", "token", "status"),
    [
        ("evil.example", None, 421),
        ("evil.example:80", None, 421),
        ("", None, 421),
        ("localhost:1", None, 200),
        ("[::1]:80", None, 200),
        ("prometheus.example", TOKEN, 200),
    ],
)
def test_a_web_site_reads_nothing_under_a_name_of_its_own(
    metrics: Metrics, host: str, token: str | None, status: int
) -> None:
    port = metrics.serve(0, token=token)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics", headers={"Host": host, "Authorization": f"Bearer {TOKEN}"})
    assert connection.getresponse().status == status
    connection.close()


def test_clients_that_send_nothing_are_few_and_end(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    port = metrics.serve(0)
    silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(CONNECTIONS_MAX)]
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        get(port, "/metrics")
    for each in silent:
        each.close()
    until_s = time.monotonic() + 10.0
    while time.monotonic() < until_s:  # until the server has noticed that they are gone
        with suppress(http.client.RemoteDisconnected, ConnectionError):
            assert get(port, "/metrics")[0] == 200
            break
    monkeypatch.setattr(metrics_server, "REQUEST_S", 0.0)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert slow.recv(1) == b""


def test_a_page_without_an_answer_says_why_and_a_mistake_ends_nothing(metrics: Metrics) -> None:
    def unavailable() -> Page:
        raise NetworkError("its trainers are electing a leader")

    def mistake() -> Page:
        raise KeyError("stages")

    port = metrics.serve(0)
    with metrics.pages({"/unavailable": unavailable, "/mistake": mistake}):
        status, _, body = get(port, "/unavailable")
        assert (status, body) == (503, b"its trainers are electing a leader\n")
        assert get(port, "/mistake")[0] == 500
        assert get(port, "/metrics")[0] == 200


@pytest.mark.parametrize("path", ["/metrics", "/targets", "/other"])
def test_nothing_is_read_without_the_token(metrics: Metrics, path: str) -> None:
    port = metrics.serve(0, token=TOKEN)
    with metrics.pages({"/targets": lambda: Page("application/json", b"[]")}):
        for wrong in (
            "",
            "Bearer",
            "Bearer wrong",
            f"Bearer {TOKEN}x",
            TOKEN,
            basic("wrong"),
            "Basic !!",
            "Basic ",
            f"Digest {TOKEN}",
            "Bearer \xff",
        ):
            status, _, body = get(port, path, wrong)
            assert (status, body) == (401, b"the token of --metrics-token is needed\n"), wrong
        expected = 404 if path == "/other" else 200
        assert get(port, path, f"Bearer {TOKEN}")[0] == expected
        assert get(port, path, basic(TOKEN))[0] == expected


def test_a_password_may_have_colons() -> None:
    assert may_read(basic("a:b:c"), "a:b:c")
    assert not may_read(basic("a:b"), "a:b:c")


def test_the_token_is_read_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert read_token(None) is None
    monkeypatch.setenv(TOKEN_VARIABLE, "another")
    assert read_token(None) == "another"
    assert read_token(file) == TOKEN


@pytest.mark.parametrize("content", ["", "\n", "two words", "two\nlines", "t\u00f6ken", "x" * 2000])
def test_a_token_that_no_client_could_send_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    file = tmp_path / "token"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match="a token is one line") as caught:
        read_token(file)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv(TOKEN_VARIABLE, content)
    with pytest.raises(ConfigError, match="a token is one line"):
        read_token(None)


def test_a_file_of_a_token_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(tmp_path / "nothing")
