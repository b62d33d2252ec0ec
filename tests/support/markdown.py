"""What is wrong with a page of Markdown, as GitHub renders it: tables, links, anchors, images.

What is only looked at in the text would miss what does not render: a row below a blank line is a
paragraph with bars in it, and a bar in code ends a cell all the same.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from markdown_it.token import Token

_BAR: Final = re.compile(r"(?<!\\)\|")
_RULE: Final = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?")
_QUOTE: Final = re.compile(r"^[\s>]*")
_NO_LINK: Final = re.compile(r"\]\([^)\s]*\)?|\]\[[^\]]+\]")
_HTML_LINK: Final = re.compile(
    r"""<(?:a|img)\b[^>]*?\b(?:href|src)=["']([^"']*)["']""", re.IGNORECASE
)
_HTML_NAME: Final = re.compile(r"""<[a-z][^>]*?\b(?:id|name)=["']([^"']*)["']""", re.IGNORECASE)
_LINES: Final = re.compile(r"L\d+(C\d+)?(-L\d+(C\d+)?)?")
_TEXTS: Final = frozenset({"text", "text_special", "code_inline"})
PYTHON_BLOCK: Final = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of Python; its group is the code."""
_KEPT: Final = ("L", "M", "N", "Pc")
"""Categories of characters that stay in an anchor, beside hyphens and spaces."""


def faults(name: str, pages: Mapping[str, str], files: frozenset[str]) -> list[str]:
    """Return what is wrong with a page, each with its line.

    Args:
        pages: the text of every page by its name.
    """
    text = pages[name]
    tokens = _tokens(text)
    found = [*_tables(tokens, text.split("\n")), *_no_tables(tokens), *_no_links(tokens)]
    for line, target in _targets(tokens):
        if fault := _fault_of(name, target, pages, files):
            found.append((line, fault))
    return [f"{name}:{line}: {fault}" for line, fault in sorted(found)]


def anchors(text: str) -> set[str]:
    """Return the anchors of a page: its headings', as GitHub makes them, and those of its HTML."""
    seen = Counter[str]()
    names: set[str] = set()
    tokens = _tokens(text)
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            slug = _slug(_plain(tokens[at + 1]))
            names.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
        for each in (token, *(token.children or ())):
            if each.type in {"html_block", "html_inline"}:
                names |= set(_HTML_NAME.findall(each.content))
    return names


def _tokens(text: str) -> Sequence[Token]:
    # Unjoined, an escaped bracket is told from one that begins a link.
    rendering = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")
    return rendering.parse(text)


def _plain(heading: Token) -> str:
    children = heading.children or ()
    return "".join(each.content for each in children if each.type in _TEXTS)


def _slug(text: str) -> str:
    kept = (
        char
        for char in text.strip().lower()
        if char in "- " or unicodedata.category(char).startswith(_KEPT)
    )
    return "".join(kept).replace(" ", "-")


def _tables(tokens: Sequence[Token], lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the rows that have another number of cells than their table's head."""
    for token in tokens:
        if token.type == "table_open" and token.map:
            first, end = token.map
            wide = _cells(lines[first])
            for number in range(first + 2, end):
                if (cells := _cells(lines[number])) != wide:
                    yield number + 1, f"a row of {cells} cells in a table of {wide}"


def _cells(line: str) -> int:
    row = _QUOTE.sub("", line).strip()
    row = row.removeprefix("|")
    if row.endswith("|") and not row.endswith("\\|"):
        row = row[:-1]
    return len(_BAR.split(row))


def _no_tables(tokens: Sequence[Token]) -> Iterator[tuple[int, str]]:
    for at, token in enumerate(tokens):
        if token.type == "inline" and tokens[at - 1].type == "paragraph_open" and token.map:
            for number, line in enumerate(token.content.split("\n"), start=token.map[0] + 1):
                if line.lstrip().startswith("|") or _RULE.fullmatch(line.strip()):
                    yield number, "a line of a table that is none"


def _no_links(tokens: Sequence[Token]) -> Iterator[tuple[int, str]]:
    for token in tokens:
        for each in token.children or ():
            if each.type == "text" and (found := _NO_LINK.search(each.content)) and token.map:
                yield token.map[0] + 1, f"a link that is none: {found[0]}"


def _targets(tokens: Sequence[Token]) -> Iterator[tuple[int, str]]:
    for token in tokens:
        line = token.map[0] + 1 if token.map else 0
        for each in (token, *(token.children or ())):
            attribute = {"link_open": "href", "image": "src"}.get(each.type)
            if attribute:
                yield line, str(each.attrs.get(attribute, ""))
            if each.type in {"html_block", "html_inline"}:
                yield from ((line, target) for target in _HTML_LINK.findall(each.content))


def _fault_of(
    name: str, target: str, pages: Mapping[str, str], files: frozenset[str]
) -> str | None:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return None
    path, anchor = unquote(parts.path), unquote(parts.fragment)
    place = name
    if path:
        folder = "" if path.startswith("/") else posixpath.dirname(name)
        place = posixpath.normpath(posixpath.join(folder, path.lstrip("/")))
    is_folder = place == "." or any(file.startswith(f"{place}/") for file in files)
    if place not in files and not is_folder:
        return f"a dead link: {target}"
    if not anchor or (place not in pages and _LINES.fullmatch(anchor)):
        return None
    there = anchors(pages[place]) if place in pages else ()
    return None if anchor in there else f"no such anchor: {target}"
