"""What code may look like: deep modules, short functions, a pure core, no unfinished words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from tests.support.repository import (
    PRODUCT,
    Module,
    imported,
    library_modules,
    name_of,
    product_modules,
    tracked,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 50

LONGER_MODULES = {
    "layers/lakesync/python/lakesync/errors.py": "one tree, drawn and declared in one place",
}
"""Modules that may be longer, each with its reason."""

LIBRARY_FILES_MAX = 320
SHARED_FILE_NAMES_MAX = 15

APART = {
    "lakesync.cli.app": "without its packages, `__main__` says what to install",
    "lakesync.client.dbapi": "public, and used without SQLAlchemy",
    "lakesync.systems.bigquery.bigquery_settings": "read without BigQuery's library",
    "lakesync.testing.memory_gateway": "public, and used without pytest",
}
"""Modules with one importer, in their own folder, that would fit into it; each with its reason."""

LONGER_FUNCTIONS: dict[str, str] = {}
"""Functions that may be longer, as ``module::name``, each with its reason."""


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def own_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count a function's lines, without those of functions inside it."""
    inner = [
        node for node in function.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return lines(function) - sum(map(lines, inner))


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count a function's lines, its decorators' too."""
    first = min([function.lineno, *(node.lineno for node in function.decorator_list)])
    return (function.end_lineno or first) - first + 1


def test_modules_are_short() -> None:
    lengths = {module.name: len(module.text.splitlines()) for module in product_modules()}
    longer = {name for name, length in lengths.items() if length > MODULE_LINES_MAX}

    assert sorted(longer - set(LONGER_MODULES)) == []
    assert sorted(set(LONGER_MODULES) - longer) == [], "no longer exceptions"


def test_library_has_few_files_and_few_of_them_share_a_name() -> None:
    files = library_modules()
    names = Counter(PurePosixPath(module.name).name for module in files)
    shared = {name for name, count in names.items() if count > 1} - {"__init__.py"}

    assert len(files) <= LIBRARY_FILES_MAX
    assert len(shared) <= SHARED_FILE_NAMES_MAX, sorted(shared)


def test_modules_with_one_importer_in_their_folder_are_too_long_for_it() -> None:
    """What only one module uses is a part of it, unless it is an idea of its own."""
    by_name = {module.dotted: module for module in library_modules()}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in by_name.values():
        for name in imported(module) & by_name.keys() - {module.dotted}:
            importers[name].add(module.dotted)
    folders = {name.rpartition(".")[0] for name in by_name}
    single = {
        name: next(iter(by))
        for name, by in importers.items()
        if len(by) == 1 and name not in folders
    }
    parts = {
        name
        for name, by in single.items()
        if name.rpartition(".")[0] == by.rpartition(".")[0]
        and len((by_name[name].text + by_name[by].text).splitlines()) <= MODULE_LINES_MAX
    }

    assert sorted(parts - APART.keys()) == []
    assert sorted(APART.keys() - parts) == [], "no longer exceptions"


def test_functions_are_short() -> None:
    longer = {
        f"{module.name}::{node.name}"
        for module in product_modules()
        for node in functions(module)
        if own_lines(node) > FUNCTION_LINES_MAX
    }

    assert sorted(longer - set(LONGER_FUNCTIONS)) == []
    assert sorted(set(LONGER_FUNCTIONS) - longer) == [], "no longer exceptions"


def test_every_module_has_a_docstring() -> None:
    assert [m.name for m in product_modules() if not ast.get_docstring(m.tree)] == []


PURE = ("core/", "wire/", "errors.py", "result.py")
IMPURE_MODULES = {"time", "random", "os", "secrets", "uuid", "socket", "asyncio", "threading"}
IMPURE_CALLS = {"now", "today", "utcnow", "open", "print", "input", "eval", "exec"}


def pure_modules() -> list[Module]:
    """Return the modules that may do nothing but compute."""
    inside = "layers/lakesync/python/lakesync/"
    return [m for m in library_modules() if m.name.removeprefix(inside).startswith(PURE)]


@pytest.mark.parametrize("module", pure_modules(), ids=lambda module: module.dotted)
def test_the_core_reads_no_clock_and_does_no_io(module: Module) -> None:
    calls = {
        ast.unparse(node.func)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in IMPURE_CALLS
    }

    assert {name.split(".")[0] for name in imported(module)} & IMPURE_MODULES == set()
    assert {call for call in calls if call != "self.now"} == set()


UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
EXCUSES = re.compile(r"\b(for now|temporar(y|ily)|quick fix|work in progress)\b", re.IGNORECASE)
ELSEWHERE = re.compile(r"localhost|127\.0\.0\.1|ministack|localstack|\bmoto\b", re.IGNORECASE)

TESTS_OF_OTHERS = "layers/lakesync/python/lakesync/cli/connector_package/test.txt"
"""What `lakesync connectors new` writes as somebody's test."""


def product_texts() -> Iterator[tuple[str, str]]:
    for path in tracked():
        name = name_of(path)
        deployed = name.startswith(PRODUCT) or name in {"template.yaml", "samconfig.toml"}
        if deployed and path.suffix in {".py", ".proto", ".json", ".yaml", ".toml", ".txt", ".mk"}:
            yield name, path.read_text("utf-8")


def lines_with(words: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in product_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if words.search(line)
    ]


def test_product_code_has_no_unfinished_markers() -> None:
    assert lines_with(UNFINISHED) == []


def test_no_comment_excuses_its_code() -> None:
    faults = [
        f"{module.name}:{token.start[0]}: {token.string}"
        for module in product_modules()
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
        if token.type == tokenize.COMMENT and EXCUSES.search(token.string)
    ]

    assert faults == []


def test_product_code_does_not_mention_its_test_environment() -> None:
    lines = [line for line in lines_with(ELSEWHERE) if not line.startswith(TESTS_OF_OTHERS)]

    assert lines == []
