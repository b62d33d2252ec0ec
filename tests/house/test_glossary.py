"""The glossary: one word, one meaning, and no word left undefined."""

from __future__ import annotations

import re

from tests.support.repository import ROOT

PAGE, _ = (ROOT / "docs" / "glossary.md").read_text("utf-8").split("## Retired words")
ROWS = re.findall(r"^\| ([^|]+) \| (.+) \|$", PAGE, re.MULTILINE)[1:]
WORDS = [word for word, _ in ROWS]


def defined(word: str) -> bool:
    """Return whether a word has an entry, be it a plural, a possessive or a participle of it."""
    return any(word.startswith(entry[:-1]) and len(word) <= len(entry) + 3 for entry in WORDS)


def test_every_word_has_one_meaning() -> None:
    assert len(WORDS) == len(set(WORDS))


def test_the_words_that_meanings_lean_on_have_entries() -> None:
    leaned_on = {word for _, meaning in ROWS for word in re.findall(r"\*([^*]+)\*", meaning)}

    assert sorted(word for word in leaned_on if not defined(word)) == []


def test_words_stand_in_the_order_of_the_alphabet() -> None:
    assert [word[0] for word in WORDS] == sorted(word[0] for word in WORDS)
