"""The words that the glossary has retired stay retired: in names, comments and docstrings."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from tests.support.repository import ROOT, Module, modules, product_modules

if TYPE_CHECKING:
    from collections.abc import Iterator


def retired() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names, and the words of names and sentences, that the glossary has retired."""
    _, page = (ROOT / "docs" / "glossary.md").read_text("utf-8").split("## Retired words")
    words = [
        word.strip()
        for cell in re.findall(r"^\| ([^|]+) \| .+ \|$", page, re.MULTILINE)[1:]
        for word in cell.split(",")
    ]
    names = {word.strip("`") for word in words if word.startswith("`")}
    return frozenset(names), frozenset(word.lower() for word in words if not word.startswith("`"))


NAMES, WORDS = retired()


def names_in(module: Module) -> Iterator[tuple[int, str]]:
    """Yield every name that a module makes or uses, its own too, with the line."""
    yield 1, PurePosixPath(module.name).stem
    for node in ast.walk(module.tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield node.lineno, name
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield node.lineno, name
            case ast.keyword(arg=str(name)) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def sentences_in(module: Module) -> Iterator[tuple[int, str]]:
    """Yield every comment and every text that stands by itself, with the line."""
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(module.tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def words_of(text: str) -> set[str]:
    """Get the words of a sentence or name, in small letters: ``may_be`` and ``mayBe`` have two."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)}


def uses_of(module: Module) -> list[str]:
    names = list(names_in(module))
    return [
        *(f"{module.name}:{line}: {name}" for line, name in names if name.strip("_") in NAMES),
        *(
            f"{module.name}:{line}: {word}"
            for line, text in [*names, *sentences_in(module)]
            for word in sorted(WORDS & words_of(text))
        ),
    ]


def read_modules() -> tuple[Module, ...]:
    return *product_modules(), *modules("tools/", "benchmarks/")


def test_no_retired_word_is_used() -> None:
    uses = [use for module in read_modules() for use in uses_of(module)]

    assert uses == []


def test_retired_words_are_found_in_names_comments_and_docstrings() -> None:
    text = '''"""Nothing is owed."""
def unmerge(held): return held.eyes  # pictured
class Kept:
    _found: int
    unproven_rows = 1
'''
    module = Module("a/settled.py", text)

    assert sorted(use.split(": ")[1] for use in uses_of(module)) == [
        "_found", "eyes", "held", "held", "owed", "pictured", "settled", "unmerge", "unproven",
    ]  # fmt: skip
