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


def test_glossary_defines_each_word_once() -> None:
    assert len(WORDS) == len(set(WORDS))


def test_words_in_italics_in_the_glossary_have_entries() -> None:
    leaned_on = {word for _, meaning in ROWS for word in re.findall(r"\*([^*]+)\*", meaning)}

    assert sorted(word for word in leaned_on if not defined(word)) == []


def test_glossary_is_in_alphabetical_order() -> None:
    assert [word[0] for word in WORDS] == sorted(word[0] for word in WORDS)
