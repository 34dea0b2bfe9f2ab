"""The files of the page keep their rules: no markup from text, no other host, nothing inline, one subject a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

STATIC = Path(__file__).parents[2] / "swarmflow" / "page" / "static"
SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(STATIC.glob("*.js"))}
SHEETS = {path.name: path.read_text(encoding="utf-8") for path in sorted(STATIC.glob("*.css"))}
PAGE = (STATIC / "index.html").read_text(encoding="utf-8")
MARKUP = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|\beval\b|Function\("
)
LINES_MAX = 400


def test_no_text_becomes_markup_or_code() -> None:
    assert [name for name, source in SCRIPTS.items() if re.search(MARKUP, source)] == []


def test_nothing_is_inline() -> None:
    """The content security policy would forbid it."""
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", PAGE)


@pytest.mark.parametrize("name", [*SCRIPTS, *SHEETS, "index.html"])
def test_no_file_names_another_host(name: str) -> None:
    source = (STATIC / name).read_text(encoding="utf-8")
    assert re.findall(r"\b(?:https?|wss?):|//[a-z0-9-]+\.[a-z]|@import|url\(", source) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_script_imports_exists(name: str) -> None:
    for names, module in re.findall(r"import \{([^}]+)\} from \"\./([^\"]+)\"", SCRIPTS[name]):
        exported = set(re.findall(r"export (?:const|function|class) (\w+)", SCRIPTS[module]))
        imported = {each.strip() for each in names.split(",") if each.strip()}
        assert imported <= exported
        for each in imported:
            assert len(re.findall(rf"\b{each}\b", SCRIPTS[name])) > 1, f"{each} is not used"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_one_subject_and_says_which(name: str) -> None:
    lines = SCRIPTS[name].splitlines()
    assert lines[0].startswith("// ")
    assert len(lines) <= LINES_MAX


def test_each_element_that_a_script_wants_is_in_the_page_once() -> None:
    ids = re.findall(r'\bid="([^"]+)"', PAGE)
    assert len(ids) == len(set(ids))
    asked = r'(?:byId|getElementById)\("([^"]+)"\)'
    wanted = {each for source in SCRIPTS.values() for each in re.findall(asked, source)}
    assert wanted <= set(ids)


def test_each_colour_that_is_used_is_defined() -> None:
    defined = set(re.findall(r"(--[a-z-]+):", SHEETS["base.css"]))
    used = {each for sheet in SHEETS.values() for each in re.findall(r"var\((--[a-z-]+)\)", sheet)}
    named = re.findall(r'"([a-z]+)"', SCRIPTS["theme.js"].split("const NAMES = [")[1].split("];")[0])
    assert used | {f"--{name}" for name in named} <= defined
