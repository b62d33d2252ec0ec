"""Versions of stored formats: read by other releases than the one that wrote them.

- Nothing is checked again: it was checked when it was accepted. A release with stricter checks must
  not refuse what is already stored.
- Fields that a reader does not know are left out, or, in a document that it will write again, kept.
- Each document names the lowest format that a reader must know. A field that may be ignored does
  not change the format. A field without which a reader would show or accept something that it must
  not raises it.
- Items without a format number (heads, row states, the flush state) are read only after the
  gateway's configuration: its format applies to all of them.
- A format is read one release before it is written. So two successive releases may run side by
  side, and the later one may be rolled back.

Law B14: ``docs/spec/commit.md``. The reasons: ``docs/adr/0014-releases-side-by-side.md``.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync.core.schema import Column, TableSchema
from lakesync.errors import UpgradeRequired

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

    from lakesync.core.rules import SyncRules

    T = TypeVar("T", bound=DataclassInstance)

READS: Final = 3
"""The latest format that this release reads. No release wrote formats 1 and 2."""
WRITES: Final = 3
"""The format that this release writes: one that the release before it can read."""

STORED_FIELDS: Final = {
    "table": "table",
    "columns": "columns",
    "version": "version",
    "primaryKey": "primary_key",
    "softDelete": "soft_delete",
    "externalIdColumn": "external_id_column",
    "sourceTable": "source_table",
    "append": "append",
    "partition": "partition",
    "keepTombstones": "keep_tombstones",
    "deleteWins": "delete_wins",
    "sort": "sort",
}
"""The fields of a stored schema, with their names in this module."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Fields of a configuration that a later release wrote and this one does not know."""

    format: int = WRITES
    """The format that a reader must know."""
    fields: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    schemas: Mapping[tuple[str, int], Mapping[str, Any]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """By table and version."""
    rules: Mapping[str, Any] | None = None
    """The rules as they were written, if they contain more than was read."""
    read_rules: SyncRules | None = None


def check_format(needed: int, what: str) -> None:
    """Refuse a document that only a later release can read.

    Raises:
        UpgradeRequired: a later format is needed.
    """
    if needed > READS:
        raise UpgradeRequired(
            f"{what} was written by a later release (format {needed}, this one reads {READS}); "
            "deploy that release again"
        )


def known(kind: type[T], body: Mapping[str, Any]) -> T:
    """Make a record from those fields of a stored document that it knows; all have defaults."""
    return kind(**{item.name: body[item.name] for item in fields(kind) if item.name in body})


def unchecked(kind: type[T], **values: object) -> T:
    """Make a frozen record without its checks."""
    made = object.__new__(kind)
    for item in fields(kind):
        value = values.get(item.name, MISSING)
        if value is MISSING:
            value = item.default if item.default_factory is MISSING else item.default_factory()
        object.__setattr__(made, item.name, value)
    return made


def schema_from_stored(body: Mapping[str, Any]) -> TableSchema:
    """Read what `schema_to_json` wrote, in any release."""
    columns = tuple(
        unchecked(
            Column,
            name=item["name"],
            type=item["type"],
            nullable=item.get("nullable", True),
            description=item.get("description", ""),
        )
        for item in body["columns"]
    )
    fields = {name: body[key] for key, name in STORED_FIELDS.items() if key in body}
    fields |= {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return unchecked(TableSchema, **fields | {"columns": columns})
