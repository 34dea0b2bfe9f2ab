"""A headless Chromium, driven through ChromeDriver's HTTP interface (W3C WebDriver)."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

MISSING = next(
    (
        f"no {name} here; on Debian: apt-get install chromium chromium-driver"
        for name in ("chromium", "chromedriver")
        if shutil.which(name) is None
    ),
    "",
)
WAIT_S = 20.0
POLL_S = 0.05
# No start page, no update, no report: what the browser asks for by itself is no request of the page.
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)


class Browser:
    """One session of a browser."""

    def __init__(self, port: int, profile: Path) -> None:
        self._port = port
        arguments = [*OPTIONS, f"--user-data-dir={profile}", "--window-size=1280,1000"]
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"

    def open(self, url: str) -> None:
        """Load a page, and forget what the console says of the one before, whose server may be gone."""
        self._call("POST", f"{self._session}/url", {"url": "about:blank"})
        self.console()
        self._call("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:  # noqa: ANN401  # whatever JSON the page returns
        """Return what a script of the page returns."""
        body = {"script": script, "args": list(arguments)}
        return self._call("POST", f"{self._session}/execute/sync", body)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window; the page itself may be narrower than a window can be."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setDeviceMetricsOverride", metrics)

    def command(self, name: str, parameters: Mapping[str, object]) -> Any:  # noqa: ANN401
        """Give a command of the DevTools protocol."""
        return self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        shot = self.command("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(shot["data"]))

    def settle(self) -> None:
        """Wait until the page has drawn again."""
        self.run("window.swarmflow.frames.length = 0")
        self.wait("return window.swarmflow.frames.length > 40", "40 frames")

    def console(self) -> list[dict[str, Any]]:
        """Return what the console says since the last call."""
        found: list[dict[str, Any]] = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return found

    def wait(self, script: str, what: str, *arguments: object, timeout_s: float = WAIT_S) -> Any:  # noqa: ANN401
        """Return the first true result of a script."""
        return waited(lambda: self.run(script, *arguments), what, timeout_s)

    def close(self) -> None:
        """End the session."""
        self._call("DELETE", self._session)

    def _call(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise AssertionError(f"{value['error']}: {value['message']}")
        return value


def waited(ready: Callable[[], T], what: str, timeout_s: float) -> T:
    """Return the first true result. Fails when there is none in time."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := ready()):
        assert time.monotonic() < deadline_s, f"waited {timeout_s:g} s in vain for {what}"
        time.sleep(POLL_S)
    return value


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a driver and a browser, and end both."""
    log = folder / "chromedriver.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=output, stderr=subprocess.STDOUT)
    try:
        port = waited(lambda: _port(log.read_text(encoding="utf-8", errors="replace")), "ChromeDriver", WAIT_S)
        one = Browser(port, folder / "profile")
        try:
            yield one
        finally:
            one.close()
    finally:
        driver.terminate()
        driver.wait(WAIT_S)


def _port(log: str) -> int:
    _, found, rest = log.partition("started successfully on port ")
    return int(rest.split(".")[0]) if found and "." in rest else 0
