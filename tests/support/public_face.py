"""What others hold on to: names that apps import, commands, the HTTP API, outputs, proofs of laws.

It is kept in ``tests/golden/public_face.json``, so that no change inside alters it unnoticed.
``python -m tests.support.public_face`` writes it anew; a change that users see goes into
``CHANGELOG.md`` too. Stored forms are kept in ``tests/golden`` and ``tests/releases``.
"""

from __future__ import annotations

import ast
import enum
import hashlib
import importlib
import inspect
import json
import re
from typing import TYPE_CHECKING, Any, Final

from lakesync.runtime.api.document import Description
from lakesync.runtime.api.open import open_routes
from tests.infrastructure.stack import template
from tests.simulation.deliberate import FAULTS
from tests.support.command_lines import commands
from tests.support.markdown import PYTHON_BLOCK
from tests.support.pages import proofs
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH: Final = ROOT / "tests" / "golden" / "public_face.json"
PACKAGES: Final = (
    *("lakesync", "lakesync.analysis", "lakesync.client", "lakesync.client.dbapi"),
    *("lakesync.connectors", "lakesync.testing"),
)
"""Everything that these export is public, whether a page names it or not."""


def public_face() -> dict[str, Any]:
    return {
        "python": _python(),
        "commands": {name: _command(each) for name, each in commands().items()},
        "http": _http(),
        "outputs": sorted(template()["Outputs"]),
        "parameters": sorted(template()["Parameters"]),
        "proofs of laws": {law: len(tests) for law, tests in sorted(proofs().items())},
        "deliberate faults": sorted(fault.name for fault in FAULTS),
    }


def changes(kept: Any, made: Any, where: str = "") -> Iterator[str]:
    if isinstance(kept, dict) and isinstance(made, dict):
        for name in sorted(kept.keys() | made.keys()):
            yield from changes(kept.get(name), made.get(name), f"{where} / {name}".strip(" /"))
    elif isinstance(kept, list) and isinstance(made, list):
        yield from (f"{where}: {one} is gone" for one in kept if one not in made)
        yield from (f"{where}: {one} is new" for one in made if one not in kept)
    elif kept != made:
        yield f"{where}: {kept} is now {made}"


# ---- Python --------------------------------------------------------------------------------------


def _python() -> dict[str, dict[str, Any]]:
    names: dict[str, set[str]] = {}
    for package in PACKAGES:
        names[package] = set(getattr(importlib.import_module(package), "__all__", ()))
    for source in _shown():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lakesync"):
                names.setdefault(str(node.module), set()).update(one.name for one in node.names)
    return {
        module: {name: _described(module, name) for name in sorted(each)}
        for module, each in sorted(names.items())
        if each
    }


def _shown() -> Iterator[str]:
    """Yield the code that pages and examples show; a piece that is no whole program is left out."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        for block in PYTHON_BLOCK.findall(page.read_text("utf-8")):
            try:
                ast.parse(block)
            except SyntaxError:
                continue
            yield block
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield path.read_text("utf-8")


def _described(module: str, name: str) -> Any:
    imported = importlib.import_module(module)
    # A module of a package is imported in the same way as a name.
    value = getattr(imported, name, None) or importlib.import_module(f"{module}.{name}")
    if inspect.ismodule(value):
        return "a module"
    if not inspect.isclass(value):
        return _signature(value) if callable(value) else type(value).__name__
    if issubclass(value, enum.Enum):  # how Python makes one is not ours
        return sorted(value.__members__)
    members = {
        member: _signature(getattr(value, member))
        for member in sorted(dir(value))
        if not member.startswith("_") and callable(getattr(value, member))
        and str(getattr(getattr(value, member), "__module__", "")).startswith("lakesync")
    }  # fmt: skip
    others = sorted(
        member
        for member in dir(value)
        if not member.startswith("_") and not callable(getattr(value, member))
    )
    fields = sorted(getattr(value, "__annotations__", {}).keys() - {*members, *others})
    return {
        "made by": _signature(value),
        "methods": members,
        "values": sorted({*others, *(each for each in fields if not each.startswith("_"))}),
    }


def _signature(value: Any) -> str:
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return "no signature"


# ---- commands, HTTP ------------------------------------------------------------------------------


def _command(command: Any) -> dict[str, Any]:
    parameters = [one for one in command.params if not getattr(one, "hidden", False)]
    return {
        "options": sorted(
            text
            for one in parameters
            if one.param_type_name == "option"
            for text in (*one.opts, *one.secondary_opts)
        ),
        "arguments": [one.name for one in parameters if one.param_type_name == "argument"],
        "help": _digest(inspect.cleandoc(command.help or "")),
    }


def _http() -> dict[str, Any]:
    document = Description(open_routes("")).document
    return {
        "operations": {
            f"{method.upper()} {path}": _digest(operation)
            for path, operations in sorted(document["paths"].items())
            for method, operation in sorted(operations.items())
        },
        "schemas": {
            name: _digest(schema)
            for name, schema in sorted(document["components"]["schemas"].items())
        },
    }


def _digest(value: Any) -> str:
    """Return what is kept of something long: enough to see that it changed."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def main() -> None:
    text = json.dumps(public_face(), indent=1, sort_keys=True, ensure_ascii=False)
    PATH.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
