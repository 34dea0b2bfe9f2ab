"""One headless browser for all tests of the page."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page.browser import MISSING, Browser, browser

AXE = "axe-core@4.11.0"
NPM_S = 60


def lacking(reason: str) -> None:
    """Skip the test for this reason; in CI it fails, since `.ci/run` installs what is missing."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with a new profile."""
    if MISSING:
        lacking(MISSING)
    with browser(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.fixture
def page(chromium: Browser) -> Iterator[Browser]:
    """The browser as a desktop's, with a light theme; what it said and asked for before is forgotten."""
    chromium.open("about:blank")
    chromium.resize(1280, 900)
    chromium.media(prefers_color_scheme="light")
    chromium.console()
    chromium.requests()
    yield chromium
    chromium.open("about:blank")


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, which finds what people with disabilities cannot use."""
    if shutil.which("npm") is None:
        lacking("no npm here; on Debian: apt-get install npm")
    folder = tmp_path_factory.mktemp("axe")
    command = ("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), AXE)
    done = subprocess.run(command, capture_output=True, text=True, timeout=NPM_S, check=False)
    if done.returncode:
        lacking(f"npm could not install {AXE}: {done.stderr.strip()[-200:]}")
    return (Path(folder) / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
