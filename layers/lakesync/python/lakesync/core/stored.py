"""Versions of stored formats: read again by another release than the one that wrote them.

- Nothing is checked: it was, when it came in. A release that checks more must not refuse what is
  there already.
- Fields that a reader does not know are left out, or, in a document that it will write again, kept.
- Each document names the least format that a reader has to know. A field that may be left out
  changes no format; one without which a reader would show or take what it must not raises it.
- What has no number of its own (heads, row states, the flush state) is read by whoever has read the
  gateway's configuration: its format is that of all of them.
- A format is read one release before it is written. So two releases that follow each other may
  run side by side, and the later one may be undone.

Law B14: ``docs/spec/commit.md``. Why: ``docs/adr/0014-releases-side-by-side.md``.
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

FORMAT_2: Final = 2
"""Of a deleted gateway, of what has to do with a table in which deletes win, and of rules that
leave columns out: who knows of none of these refuses it."""
READS: Final = FORMAT_2
"""The latest format that this release reads."""
WRITES: Final = 1
"""The format that this release writes: that which the release before it reads."""

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
"""The fields of a stored schema, with their names here."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """What a later release wrote into a configuration, and this one does not know."""

    format: int = WRITES
    """That which a reader of it must know."""
    fields: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    schemas: Mapping[tuple[str, int], Mapping[str, Any]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """By table and version."""
    rules: Mapping[str, Any] | None = None
    """The rules as they were written, if more is in them than was read."""
    read_rules: SyncRules | None = None


def check_format(needed: int, what: str) -> None:
    """Refuse what only a later release can read.

    Raises:
        UpgradeRequired: a later format is needed.
    """
    if needed > READS:
        raise UpgradeRequired(
            f"{what} was written by a later release (format {needed}, this one reads {READS}); "
            "deploy that release again"
        )


def known(kind: type[T], body: Mapping[str, Any]) -> T:
    """Make a record of the fields that it has and a stored document names; all have defaults."""
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
