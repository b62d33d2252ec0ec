"""The specification and the tests hold each other: no law without proof, no proof without law."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support import pages
from tests.support.repository import ROOT, modules, name_of, product_modules

if TYPE_CHECKING:
    from pathlib import Path

PAGES = pages.spec_pages()
by_name = pytest.mark.parametrize("page", PAGES, ids=name_of)


def stated() -> list[str]:
    """Return every law of every page."""
    return [law for page in PAGES for law in pages.stated_laws(page)]


def test_every_law_has_a_number_of_its_own() -> None:
    assert [law for law, count in Counter(stated()).items() if count > 1] == []


@by_name
def test_the_laws_of_a_page_are_numbered_in_order(page: Path) -> None:
    laws = pages.stated_laws(page)

    assert laws == sorted(laws, key=pages.law_number)


def test_every_law_is_named_by_a_test() -> None:
    assert sorted(set(stated()) - set(pages.proofs())) == []


def test_every_law_that_a_test_names_is_stated() -> None:
    assert sorted(set(pages.proofs()) - set(stated())) == []


def test_every_mark_is_where_it_can_be_read() -> None:
    """On a function, a class or a method: not in a list, nor on a whole module."""
    test_files = [module for module in modules("tests/") if "tests/support/" not in module.name]
    named = {
        module.name: len(re.findall(r"mark\.law\((?:\s*\"\w+\",?)+", module.text))
        for module in test_files
    }
    read = {module.name: len(pages.marks_in(module)) for module in test_files}

    assert {name: count for name, count in named.items() if read[name] != count} == {}


@by_name
def test_the_parts_of_a_page_that_are_written_from_the_code_are_current(page: Path) -> None:
    assert page.read_text("utf-8") == pages.renewed(page), f"run `{pages.COMMAND}`"


@by_name
def test_a_page_of_laws_says_what_is_not_promised(page: Path) -> None:
    titles = re.findall(r"^## (.*)$", page.read_text("utf-8"), re.MULTILINE)

    if pages.stated_laws(page):
        assert {"Definitions", "Laws", "Proved by", "Not promised"} <= set(titles)


CITED = re.compile(r"Laws? ([A-Z]+)(\d+)(?:-[A-Z]+(\d+))?:\s+``(docs/spec/[a-z_]+\.md)``")


def test_every_law_that_the_code_cites_stands_on_the_page_it_names() -> None:
    missing = []
    for module in product_modules():
        for letters, first, last, page in CITED.findall(module.text):
            path = ROOT / page
            stated = pages.stated_laws(path) if path.exists() else []
            wanted = {f"{letters}{number}" for number in range(int(first), int(last or first) + 1)}
            missing += [f"{module.name}: {page} has no {law}" for law in wanted - set(stated)]

    assert sorted(missing) == []


def test_every_page_that_the_code_names_exists() -> None:
    named = {
        (module.name, page)
        for module in product_modules()
        for page in re.findall(r"docs/[\w/]+\.md", module.text)
    }

    assert sorted(pair for pair in named if not (ROOT / pair[1]).exists()) == []


def test_every_limit_says_why_and_in_which_unit() -> None:
    assert [limit.name for limit in pages.limits() if not limit.reason] == []
    assert [limit.name for limit in pages.limits() if not limit.unit] == []
