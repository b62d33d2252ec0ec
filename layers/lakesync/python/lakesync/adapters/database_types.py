"""Types of databases that packages add: kinds of destinations, and of sources of flows and pulls.

A package adds one by an entry point of the group ``lakesync.databases`` that names a
`DatabaseType`. The entry point's name is the kind, and what its URLs begin with: ``NAME://…``. Your
own must pass the contracts of `lakesync.testing`; see ``docs/guide/adapters.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakesync.adapters.database import DestinationDatabase
from lakesync.adapters.entry_points import NO_TYPES, loaded, names_in
from lakesync.core.destinations import KINDS
from lakesync.errors import AdapterRefused, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    """Return all kinds that can be declared."""
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
