"""Which sources a module's figures are of, and whether they have changed since.

A module names in ``MEASURES`` the files and packages whose work it times: folders or files, from
the root of the repository, or another module's ``MEASURES``. Its figures are of these, of itself,
and of all helpers in `benchmarks` and `tests` that it imports, and theirs. The digest of all this
is kept beside each figure; a figure with another one than today's is stale.

Comments, docstrings, blank lines and what stands at the ends of lines count for nothing, so that
wording makes no figure stale. No module is imported, and every Python gives the same digest.
"""

from __future__ import annotations

import ast
import io
import json
import tokenize
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = Path(__file__).resolve().parent
RESULTS: Final = FOLDER / "results.json"
DECLARED: Final = "MEASURES"
_HELPERS: Final = frozenset({"benchmarks", "tests"})
_OTHER_KINDS: Final = frozenset({".sql", ".json", ".ts"})
"""What a package reads beside Python; and the JavaScript client's."""
_DIGEST_CHARACTERS: Final = 16


class Stale(NamedTuple):
    """A module whose figures are of sources that have changed, or that has none."""

    module: str
    figures: tuple[str, ...]
    """Those of other sources; none if it was never measured."""
    seconds: float
    """How long it took to measure them."""


def digest_of(module: str) -> str:
    """Return the digest of all sources that a module's figures are of."""
    digest = sha256()
    for path in sorted(_files(module)):
        digest.update(f"{path.relative_to(ROOT).as_posix()} {_digest(path)}\n".encode())
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


def stale(entries: Iterable[dict[str, Any]], modules: Sequence[str]) -> list[Stale]:
    """Return the modules with a figure that was measured on other sources, or with none at all.

    A figure has a value: that a module failed is on record too, and is none.
    """
    entries = [entry for entry in entries if entry["value"] is not None]
    changed = []
    for module in modules:
        of_it = [entry for entry in entries if entry.get("module") == module]
        digest = digest_of(module)
        others = tuple(entry["name"] for entry in of_it if entry.get("sources") != digest)
        if others or not of_it:
            seconds = max((entry.get("module_seconds", 0) for entry in of_it), default=0)
            changed.append(Stale(module, others, seconds))
    return changed


def current(entries: Iterable[dict[str, Any]], modules: Sequence[str]) -> list[dict[str, Any]]:
    """Return the figures that were measured on the sources that are here."""
    digests = {module: digest_of(module) for module in modules}
    return [entry for entry in entries if entry.get("sources") == digests.get(entry["module"])]


def advice(changed: Sequence[Stale]) -> str:
    """Return what to run so that no figure is stale any more."""
    lines = ["figures of sources that have changed since, or that were never measured:"]
    for one in changed:
        took = f" (took {one.seconds:.0f} s)" if one.seconds else ""
        lines.append(f"  {one.module}: {', '.join(one.figures) or 'never measured'}{took}")
    if any(one.figures for one in changed):
        lines.append("to remove figures of other sources: python -m benchmarks --drop-stale")
    names = " ".join(one.module for one in changed)
    return "\n".join([*lines, f'run: make bench ONLY="{names}"'])


def recorded() -> list[dict[str, Any]]:
    """Return the figures on record."""
    entries: list[dict[str, Any]] = json.loads(RESULTS.read_text("utf-8"))
    return entries


def figure_on_record(name: str) -> float | None:
    """Return a figure as it was measured last, on whatever sources; None if it never was."""
    values = [entry["value"] for entry in recorded() if entry["name"] == name]
    return next((value for value in values if value is not None), None)


def measures(module: str) -> tuple[str, ...]:
    """Return what a module declares in ``MEASURES``: its own, or another module's."""
    for node in _tree(_module_file(f"benchmarks.{module}")).body:
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if DECLARED in names and node.value is not None:
                if isinstance(node.value, ast.Attribute) and isinstance(node.value.value, ast.Name):
                    return measures(node.value.value.id)
                declared: tuple[str, ...] = ast.literal_eval(node.value)
                return declared
    raise LookupError(f"benchmarks.{module} names in {DECLARED} no sources that it measures")


def _files(module: str) -> set[Path]:
    own = FOLDER / module
    files = set(own.rglob("*.py")) if own.is_dir() else set()
    files.update(_helpers(_module_file(f"benchmarks.{module}")))
    for path in list(files):
        files.update(_helpers(path))
    for declared in measures(module):
        files.update(_under(ROOT / declared))
    return files


def _under(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: {DECLARED} names what is not there")
    for file in path.rglob("*"):
        if file.suffix == ".py" or file.suffix in _OTHER_KINDS:
            yield file


@cache
def _helpers(path: Path) -> frozenset[Path]:
    known: set[Path] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file not in known:
            known.add(file)
            waiting += _imported(file)
    return frozenset(known)


def _imported(path: Path) -> list[Path]:
    named: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            named.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named.add(node.module)
            named.update(f"{node.module}.{alias.name}" for alias in node.names)
    ours = (name for name in named if name.partition(".")[0] in _HELPERS)
    return [file for file in map(_module_file, ours) if file.is_file()]


def _module_file(name: str) -> Path:
    path = ROOT.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def _digest(path: Path) -> str:
    text = path.read_text("utf-8")
    return sha256((code_of(text) if path.suffix == ".py" else text).encode()).hexdigest()


def code_of(source: str) -> str:
    """Return the lines of a Python source without comments, docstrings and blank lines."""
    lines = [line.encode() for line in source.split("\n")]
    for start, end in sorted([*_documentation(source), *_comments(source)], reverse=True):
        _cut(lines, start, end)
    return "".join(f"{line.decode()}\n" for line in map(bytes.rstrip, lines) if line)


_Place = tuple[int, int]
"""A line, from 0, and a byte in it."""


def _cut(lines: list[bytes], start: _Place, end: _Place) -> None:
    head, tail = lines[start[0]][: start[1]], lines[end[0]][end[1] :]
    lines[start[0]] = head + tail
    for number in range(start[0] + 1, end[0] + 1):
        lines[number] = b""


def _documentation(source: str) -> Iterator[tuple[_Place, _Place]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            value = node.value
            assert value.end_lineno is not None
            assert value.end_col_offset is not None
            if isinstance(value.value, str):
                yield (
                    (value.lineno - 1, value.col_offset),
                    (value.end_lineno - 1, value.end_col_offset),
                )


def _comments(source: str) -> Iterator[tuple[_Place, _Place]]:
    lines = source.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            number, column = token.start[0] - 1, token.start[1]
            start = len(lines[number][:column].encode())
            yield (number, start), (number, start + len(token.string.encode()))
