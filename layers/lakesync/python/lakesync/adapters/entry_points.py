"""Types that packages add by entry points: listed by their names, imported one at a time.

So a package that cannot be imported costs nothing but its own type.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

from lakesync.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoint

T = TypeVar("T")

NO_TYPES: Mapping[str, str] = {}


def names_in(group: str, built_in: Mapping[str, str]) -> list[str]:
    """Return the names of all types of a group of entry points, those of this package too."""
    return sorted({*built_in, *(entry.name for entry in entry_points(group=group))})


def loaded(group: str, built_in: Mapping[str, str], name: str, wanted: type[T], noun: str) -> T:
    """Import a type by its name: one of this package, or another's by its entry point.

    Args:
        group: the group of entry points.
        built_in: this package's own types, each with its module and name.
        name: the type's name.
        wanted: its class.
        noun: what people call it, for errors.

    Raises:
        NotFound: there is none of that name, or it cannot be imported here; the error names the
            entry point and its package.
    """
    if name in built_in:
        module, _, attribute = built_in[name].partition(":")
        kind: object = getattr(import_module(module), attribute)
        where = name
    else:
        entry = _entry(group, built_in, name, noun)
        where = _shown(entry)
        try:
            kind = entry.load()
        except Exception as exc:
            fault = f"{type(exc).__name__}: {exc}"
            raise NotFound(
                f"the {noun} {name} cannot be imported from the entry point {where}: {fault}; "
                "mend or remove that package",
                field="type",
            ) from exc
    if not isinstance(kind, wanted):
        raise NotFound(f"the entry point {where} is no {wanted.__name__}", field="type")
    return kind


def _entry(group: str, built_in: Mapping[str, str], name: str, noun: str) -> EntryPoint:
    """Return the entry point of a name; two packages that have it are not chosen between."""
    there = {
        (entry.value, _package(entry)): entry for entry in entry_points(group=group, name=name)
    }
    if len(there) > 1:
        packages = " and ".join(sorted(_shown(entry) for entry in there.values()))
        raise NotFound(
            f"the {noun} {name} is that of several entry points: {packages}; remove all but one",
            field="type",
        )
    if not there:
        names = ", ".join(names_in(group, built_in))
        raise NotFound(f"there is no {noun} of type {name[:40]!r}; there are {names}", field="type")
    return next(iter(there.values()))


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else ""


def _shown(entry: EntryPoint) -> str:
    package = _package(entry)
    return f"{entry.value}" + (f" of the package {package}" if package else "")
