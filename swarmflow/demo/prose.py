"""The demonstration's text: English prose from this machine's own Python, and a tokenizer made for it."""

from __future__ import annotations

import ast
import importlib
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from swarmflow.demo.corpus import SKIPPED
from swarmflow.errors import DataError

PROSE_BYTES_MAX = 1 << 20
VOCABULARY = 1024
CHARACTERS_MIN = 60  # a shorter paragraph is a heading or a list item
WORDS_SHARE = 0.95  # of letters, spaces, commas and full stops: less is code or a table
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def write_prose(path: Path, bytes_max: int = PROSE_BYTES_MAX) -> int:
    """Write paragraphs of Python's language reference and of the docstrings of its modules into a file, one a line.

    Returns their bytes, about `bytes_max` at most. Raises DataError where this Python has neither.
    """
    written = 0
    with path.open("w", encoding="utf-8") as prose:
        for paragraph in paragraphs(_documents()):
            if written >= bytes_max:
                break
            prose.write(f"{paragraph}\n")
            written += len(paragraph.encode()) + 1
    if not written:
        raise DataError("this Python has no texts to learn from; install the full standard library")
    return written


def write_tokenizer(prose: Path, path: Path, vocabulary: int = VOCABULARY) -> int:
    """Write a tokenizer.json whose tokens are the commonest pieces of words in the prose; return how many they are."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    with prose.open(encoding="utf-8") as lines:
        tokenizer.train_from_iterator(lines, vocab_size=vocabulary, show_progress=False)
    tokenizer.save(str(path))
    return int(tokenizer.get_vocab_size())


def paragraphs(documents: Iterable[str]) -> Iterator[str]:
    """Yield the paragraphs of whole sentences, each once and on one line; no code, no lists, no tables."""
    seen: set[str] = set()
    for document in documents:
        for block in re.split(r"\n\s*\n", document):
            text = " ".join(block.split()).removeprefix("* ")
            if text not in seen and _is_prose(text):
                seen.add(text)
                yield text


def _is_prose(text: str) -> bool:
    if len(text) < CHARACTERS_MIN or not text[0].isupper() or text[-1] not in ".:!?" or ">>>" in text:
        return False
    return sum(character.isalpha() or character in " ,.'" for character in text) >= WORDS_SHARE * len(text)


def _documents() -> Iterator[str]:
    """Yield the topics of Python's help, then the docstrings of the standard library in the order of their paths."""
    with suppress(ImportError):  # some distributions leave it out: the docstrings are text enough
        yield from importlib.import_module("pydoc_data.topics").topics.values()
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not SKIPPED & set(path.relative_to(root).parts):
            yield from _docstrings(path)


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a module's own escapes and literals
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a template or a test of the parser, no module
        return
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and (docstring := ast.get_docstring(node)):
            yield docstring
