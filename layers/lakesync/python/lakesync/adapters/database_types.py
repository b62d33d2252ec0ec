"""Types that packages add by entry points; of databases, kinds of destinations and sources.

Types are listed by their names and imported one at a time, so a package that cannot be imported
costs nothing but its own type. Connectors and action handlers are found in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync.adapters.database import DestinationDatabase
from lakesync.core.destinations import KINDS
from lakesync.errors import AdapterRefused, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
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


# --- kinds of databases ---------------------------------------------------------------------------


GROUP: Final = "lakesync.databases"
"""The group of entry points."""
OWN_SCHEMES: Final = frozenset({*KINDS, "postgresql", "mariadb"})
"""What the URLs of this package's databases begin with; no package may replace one."""


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """Which database is opened, and for whom."""

    url: str
    """As it is in the secret: ``NAME://…``."""
    keeper: str
    """Whose tables: a gateway's id, or ``GATEWAY/FLOW``."""
    credentials: Mapping[str, Any] | None = None
    """Those beside the URL in the secret, if it has any."""
    history_ms: int | None = None
    """How old history may be that is kept; None keeps all."""
    hosts: tuple[str, ...] = ()
    """Which hosts that are not public may be reached; see `lakesync.adapters.network`."""


@dataclass(frozen=True, slots=True)
class DatabaseType:
    """A kind of database: how it is opened."""

    title: str
    """What people call it."""
    open: Callable[[DatabasePlace], DestinationDatabase]
    """Opens a database; imports its driver, and does not connect. Raises
    `lakesync.errors.ValidationFailed` for a malformed URL, of which it repeats no part."""


def added_kinds() -> list[str]:
    """Return the kinds that packages add; nothing is imported for it."""
    return [name for name in names_in(GROUP, NO_TYPES) if name not in OWN_SCHEMES]


def database_kinds() -> list[str]:
    return [*KINDS, *added_kinds()]


def opened_by_type(kind: str, place: DatabasePlace) -> DestinationDatabase:
    """Return a database whose kind a package adds; nothing is connected yet.

    Raises:
        AdapterRefused: the package cannot be imported, or its database lacks operations.
        ValidationFailed: the URL is none of that kind.
    """
    try:
        opened: object = loaded(GROUP, NO_TYPES, kind, DatabaseType, "database").open(place)
    except NotFound as exc:
        raise AdapterRefused(exc.message) from exc
    except ImportError as exc:
        raise AdapterRefused(f"the driver of {kind} cannot be imported: {exc}") from exc
    if not isinstance(opened, DestinationDatabase):
        lacking = ", ".join(name for name in _operations() if not hasattr(opened, name))
        raise AdapterRefused(f"the database {kind} lacks the operations {lacking}")
    return opened


def _operations() -> list[str]:
    bases = [base for base in DestinationDatabase.__mro__ if "Protocol" not in base.__name__]
    names = {name for base in bases for name in vars(base) if not name.startswith("_")}
    return sorted(names)
