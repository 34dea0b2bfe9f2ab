"""The text of the demonstration, and its tokenizer."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from swarmflow.demo.prose import paragraphs, write_prose, write_tokenizer

SENTENCE = "A sentence that is long enough to be a paragraph of some text, and that ends."


def test_only_whole_sentences_are_prose_each_once_and_on_one_line() -> None:
    wrapped = SENTENCE.replace("long ", "long\n   ")
    code = ">>> print('This line looks like a sentence that somebody has written down.')."
    table = "Name = 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10 | 11 | 12 | 13 | 14 | 15 | 16."
    fragment = "and this one begins in the middle of something that was said elsewhere, long ago."
    document = "\n\n".join(("A heading", wrapped, code, table, fragment, SENTENCE.removesuffix(".")))
    assert list(paragraphs([document, f"* {SENTENCE}"])) == [SENTENCE]


def test_this_machine_has_enough_text_and_no_more_than_asked_for_is_written(tmp_path: Path) -> None:
    size = write_prose(tmp_path / "prose.txt", 200_000)
    text = (tmp_path / "prose.txt").read_text(encoding="utf-8")
    assert len(text.encode()) == size
    assert 200_000 <= size < 210_000
    lines = text.splitlines()
    assert len(set(lines)) == len(lines)
    assert sum(line[0].isupper() and line[-1] in ".:!?" for line in lines) == len(lines)


def test_the_tokenizer_gives_the_text_back_and_common_words_a_token_each(tmp_path: Path) -> None:
    write_prose(tmp_path / "prose.txt", 200_000)
    assert write_tokenizer(tmp_path / "prose.txt", tmp_path / "tokenizer.json", 600) == 600
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (SENTENCE, "Größe: 3 µm, \N{SNOWMAN}\n"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert len(tokenizer.encode(" the is of").ids) == 3
