"""The parts of ``docs/spec`` that are written from the code.

The laws of each page with the tests that prove them, the error codes, and the limits. Where the
code says it already, a page that says it by hand would only grow stale:
``python -m tests.support.pages`` renews all of them, and ``tests/house`` fails until it is run.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakesync.errors import BY_CODE
from tests.support.repository import ROOT, library_modules, modules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.repository import Module

SPEC = ROOT / "docs" / "spec"
COMMAND = "python -m tests.support.pages"
LAW = re.compile(r"^\*\*([A-Z]+[0-9]+)\. ", re.MULTILINE)
"""How a page states a law: ``**M1. A title.**`` at the start of a line."""


def spec_pages() -> list[Path]:
    return sorted(SPEC.glob("*.md"))


def stated_laws(page: Path) -> list[str]:
    return LAW.findall(page.read_text("utf-8"))


# ---- laws ----------------------------------------------------------------------------------------


def laws_of(mark: ast.expr) -> tuple[str, ...]:
    """Return the laws that a mark names; none if it is another mark."""
    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.law":
        return tuple(ast.literal_eval(argument) for argument in mark.args)
    return ()


def marks_in(module: Module) -> list[tuple[str, tuple[str, ...]]]:
    """Return the id of the test and the laws of every mark on a module, function, class or method.

    A module's own is ``pytestmark = pytest.mark.law("K27")``: each of its tests proves that law.
    """
    of_module = [
        laws
        for node in module.tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        if (laws := laws_of(node.value))
    ]
    tests = [
        f"{module.name}::{node.name}"
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if node.name.lower().startswith("test")
    ]
    own = own_marks_in(module)
    every = own + [(test, laws) for test in tests for laws in of_module]
    order = {test: place for place, test in enumerate(tests)}
    return sorted(every, key=lambda mark: order.get("::".join(mark[0].split("::")[:2]), 0))


def own_marks_in(module: Module) -> list[tuple[str, tuple[str, ...]]]:
    """Return the id of the test and the laws of every mark on a function, class or method."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            test = f"{prefix}::{node.name}"
            yield from ((test, laws) for laws in map(laws_of, node.decorator_list) if laws)
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, test)

    return list(walk(module.tree.body, module.name))


def proofs() -> dict[str, list[str]]:
    """Return the ids of the tests that name each law."""
    tests: dict[str, list[str]] = {}
    for module in modules("tests/"):
        for test, laws in marks_in(module):
            for law in laws:
                tests.setdefault(law, []).append(test)
    return tests


def law_number(law: str) -> tuple[str, int]:
    """Return what laws are sorted by: M2 before M10."""
    letters = law.rstrip("0123456789")
    return letters, int(law[len(letters) :])


def proved_by(page: Path) -> str:
    """Return the section of a page that names its laws' tests."""
    by_law = proofs()
    lines = [f"Written by `{COMMAND}` from the marks of the tests.", ""]
    for law in sorted(stated_laws(page), key=law_number):
        lines.append(f"- **{law}**")
        lines += [f"  - `{test}`" for test in by_law.get(law, [])]
    return "\n".join(lines)


# ---- errors --------------------------------------------------------------------------------------


def error_table() -> str:
    lines = [
        f"Written by `{COMMAND}` from `lakesync.errors`.",
        "",
        "| Code | Status | Try again | What it means, and what to do |",
        "|---|---|---|---|",
    ]
    for code, kind in sorted(BY_CODE.items()):
        meaning = " ".join((inspect.getdoc(kind) or "").split())
        again = kind.retry.value.replace("_", " ")
        lines.append(f"| `{code}` | {kind.status} | {again} | {meaning} |")
    return "\n".join(lines)


# ---- limits --------------------------------------------------------------------------------------

LIMIT = re.compile(r"[A-Za-z][A-Za-z0-9_]*_max|[A-Z][A-Z0-9_]*_MAX")
UNITS = {
    "s": "seconds",
    "ms": "milliseconds",
    "mb": "megabytes",
    "depth": "levels",
    "counter": "stamps in one millisecond",
    "stamp": "a stamp",
    "refused": "connections",
    "signed": "parts",
    "sent_per_s": "frames a second",
    "frames_per_s": "frames a second",
}


@dataclass(frozen=True)
class Limit:
    name: str
    value: object
    reason: str

    @property
    def unit(self) -> str:
        """The word before the last: ``push_deltas_max`` counts deltas."""
        last = self.name.lower().rpartition(".")[2].removesuffix("_max")
        if last in UNITS:
            return UNITS[last]
        words = last.split("_")
        word = words[-2] if words[-1] == "remembered" and words[1:] else words[-1]
        return UNITS.get(word, word)


def limits_in(module: Module) -> Iterator[Limit]:
    """Yield the public bounds of a module and of its ``…Limits``, with the words below each."""

    def walk(body: list[ast.stmt], owner: object, prefix: str) -> Iterator[Limit]:
        for node, below in zip(body, [*body[1:], ast.Pass()], strict=True):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Limits"):
                yield from walk(node.body, getattr(owner, node.name), f"{prefix}.{node.name}")
            name = _assigned(node)
            if name and LIMIT.fullmatch(name):
                yield Limit(f"{prefix}.{name}", _value(owner, name), _words(below))

    if any(LIMIT.search(line) for line in module.text.splitlines()):
        loaded = importlib.import_module(module.dotted)
        yield from walk(module.tree.body, loaded, module.dotted.removeprefix("lakesync."))


def _assigned(node: ast.stmt) -> str | None:
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        target: ast.expr = node.target
    elif isinstance(node, ast.Assign):
        target = node.targets[0]
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def _value(owner: object, name: str) -> object:
    fields = getattr(owner, "__dataclass_fields__", {})
    return fields[name].default if name in fields else getattr(owner, name)


def _words(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split()).replace("``", "`").replace("|", "\\|")
    return ""


def limits() -> list[Limit]:
    return [limit for module in library_modules() for limit in limits_in(module)]


def limit_table() -> str:
    lines = [
        f"Written by `{COMMAND}` from the constants and the words below them.",
        "",
        "| Limit | Value | Unit | What it bounds, and why |",
        "|---|---:|---|---|",
    ]
    rows = (
        f"| `{limit.name}` | {limit.value:,} | {limit.unit} | {limit.reason} |"
        for limit in limits()
    )
    return "\n".join([*lines, *rows])


# ---- pages ---------------------------------------------------------------------------------------


def with_section(text: str, title: str, body: str) -> str:
    """Return a page with the section of this title renewed, or added at the end."""
    section = f"## {title}\n\n{body}\n"
    old = re.search(rf"^## {title}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if old is None:
        return f"{text.rstrip()}\n\n{section}"
    rest = text[old.end() :]
    return f"{text[: old.start()]}{section}" + (f"\n{rest}" if rest else "")


def renewed(page: Path) -> str:
    """Return what a page must say, with what it says by hand left alone."""
    text = page.read_text("utf-8")
    if page.name == "errors.md":
        return with_section(text, "Codes", error_table())
    if page.name == "limits.md":
        return with_section(text, "Limits", limit_table())
    if stated_laws(page):
        return with_section(text, "Proved by", proved_by(page))
    return text


if __name__ == "__main__":
    for written in spec_pages():
        written.write_text(renewed(written), "utf-8")
