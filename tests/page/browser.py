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

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = (
    ""
    if BINARY is not None and shutil.which("chromedriver") is not None
    else "no Chromium and chromedriver here; on Debian: apt-get install chromium chromium-driver"
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
            "goog:chromeOptions": {"args": arguments, "binary": BINARY},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"

    def open(self, url: str) -> None:
        """Load a page."""
        self._call("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:  # noqa: ANN401  # whatever JSON the page returns
        """Return what a script of the page returns."""
        body = {"script": script, "args": list(arguments)}
        return self._call("POST", f"{self._session}/execute/sync", body)

    def run_async(self, script: str, *arguments: object) -> Any:  # noqa: ANN401  # as of run
        """Return what a script of the page gives to its last argument, a function."""
        return self._call("POST", f"{self._session}/execute/async", {"script": script, "args": list(arguments)})

    def media(self, **features: str) -> None:
        """Set what the page is told of its viewer: `prefers_color_scheme="dark"`."""
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.command("Emulation.setEmulatedMedia", {"features": listed})

    def requests(self) -> list[str]:
        """Return the addresses of all that was requested since the last call, whoever in the browser asked for it."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [str(params["request"]["url"]) for params in sent]

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window; the page itself may be narrower than a window can be."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setDeviceMetricsOverride", metrics)

    def command(self, name: str, parameters: Mapping[str, object]) -> Any:  # noqa: ANN401
        """Give a command of the DevTools protocol."""
        return self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def screenshot(self, path: Path, element: str = "") -> None:
        """Write a picture of the window, or of the first element that a selector names."""
        wanted: dict[str, object] = {"format": "png"}
        if element:
            box = f"return document.querySelector({json.dumps(element)}).getBoundingClientRect().toJSON()"
            clip = self.run(box)
            offset = self.run("return window.scrollY")
            size = {
                "x": clip["x"],
                "y": clip["y"] + offset,
                "width": clip["width"],
                "height": clip["height"],
                "scale": 1,
            }
            wanted |= {"captureBeyondViewport": True, "clip": size}
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", wanted)["data"]))

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
