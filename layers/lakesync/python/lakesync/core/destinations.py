"""Destinations: databases besides the lake that receive a gateway's batches, as declared.

A declaration says which tables are sent, which of their rows (buckets of filters, as in sync
rules), and under which names; and where the destination's old history is archived. Other rows would
need another filling, so a destination is changed by removing it and adding it again. Only its
paused state can change in place. What is declared is read by `lakesync.declare.destinations`.
Laws D7-D12: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.column_map import (
    NO_MAP,
    ColumnMap,
    map_from_stored,
    map_schema,
    map_to_json,
)
from lakesync.core.config import WRITES, check_format
from lakesync.core.deliveries import Pace, pace_of
from lakesync.core.rules import NO_RULES, SyncRules, rules_from_stored, rules_to_json
from lakesync.core.visibility import Viewer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lakesync.core.schema import TableSchema

# --- archives of old history ----------------------------------------------------------------------


UNARCHIVED_KINDS: Final = ("s3", "iceberg")
"""Kinds of destinations that may have no archive: they are in a bucket already."""
BUCKET: Final = "s3"
ARCHIVE_KINDS: Final = (BUCKET, "postgres")
"""What an archive may be: a folder of a bucket, or a table of another database."""
ARCHIVE_DAYS_MAX: Final = 30
"""The most days before history is archived. It is less than the time after which a release that
knows no archive forgets history (`lakesync.adapters.database.HISTORY_MS`)."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Where history is archived, and when."""

    secret: str
    """The name of the secret that holds the URL of the folder or database."""
    after_days: int
    kind: str = BUCKET
    """One of `ARCHIVE_KINDS`."""


def archive_to_json(archive: Archive | None) -> dict[str, Any]:
    """Return the field of a declaration for an archive; no field without an archive."""
    if archive is None:
        return {}
    kind = {} if archive.kind == BUCKET else {"kind": archive.kind}
    return {"archive": {"secret": archive.secret, "afterDays": archive.after_days, **kind}}


def archive_from_stored(item: Mapping[str, Any] | None) -> Archive | None:
    """Read what `archive_to_json` wrote."""
    return (
        None
        if item is None
        else Archive(item["secret"], item["afterDays"], item.get("kind", BUCKET))
    )


LAKE: Final = "lake"
"""The destination that every gateway has, unless others are declared in its place."""
ICEBERG: Final = "iceberg"
"""Iceberg tables in any catalogue: source or destination of polled flows."""
KINDS: Final = ("postgres", "mysql", "bigquery", "s3", ICEBERG)
"""The kinds that can be declared; MariaDB is ``mysql`` with its own URL scheme."""
DESTINATIONS_MAX: Final = 10
"""Destinations of one gateway, without the lake: each has a claim for every batch."""
QUIET_MS: Final = 6 * 60_000
"""How long a process may still write to a removed destination: the function that delivers runs for
at most five minutes."""
INSTEAD_OF_LAKE: Final = ("postgres", "mysql")
"""The kinds that may stand in the lake's place: what arrives there is there in full at once."""
EVERY_TABLE: Final = "*"
"""In the list of tables without a lake: all, also later ones."""
DELETES: Final = ("hard", "soft")
"""Whether a deleted row is removed, or stays with the time of its deletion."""
NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
SECRET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Destination:
    """One declared destination."""

    name: str
    kind: str
    secret: str
    """The name of the secret that holds the URL, under the prefix of the gateway's secrets."""
    tables: frozenset[str] = frozenset()
    """Empty means all tables."""
    rows: SyncRules = NO_RULES
    """Which rows are sent; none of its filters refers to a token claim."""
    table_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By table, its name at the destination."""
    deletes: str = ""
    """One of `DELETES`; empty: as the table's schema says."""
    maps: Mapping[str, ColumnMap] = field(default_factory=lambda: MappingProxyType({}))
    """By table, how its columns change. The decision uses the row as the gateway has it."""
    paused: bool = False
    declared_ms: int = 0
    """When it was declared; a later one of the same name is a different destination."""
    fill_asked: bool = field(default=False, compare=False)
    """Whether its filling was requested; declaring it again makes up for a missing request."""
    unknown: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Fields that a later release wrote and this one does not know."""
    archive: Archive | None = None
    lake: bool = True
    """Whether its tables also go to the lake."""

    @property
    def secrets(self) -> frozenset[str]:
        """The names of all secrets that are needed to open it."""
        return frozenset({self.secret, self.archive.secret} if self.archive else {self.secret})

    def wants(self, table: str) -> bool:
        """Return whether rows of a table may be sent there."""
        return (not self.tables or table in self.tables) and self.viewer().may_see(table)

    def viewer(self) -> Viewer:
        """Get the object that decides which rows are sent, by the same function as visibility."""
        return Viewer(self.rows, {})

    @property
    def pace(self) -> Pace:
        """How batches are gathered for it."""
        return pace_of(self.kind)

    def is_filtered(self, table: str) -> bool:
        """Return whether some rows of a table are not sent there."""
        if not self.rows.buckets:
            return False
        return all(bucket.filters for bucket in self.rows.covering(table))

    def map_of(self, table: str) -> ColumnMap:
        """Return the column map of a table."""
        return self.maps.get(table, NO_MAP)

    def schema_of(self, table: str, schema: TableSchema | None) -> TableSchema | None:
        """Return a table's schema as it is there: its columns, its name, deletion as declared."""
        if schema is None:
            return None
        mapped = map_schema(self.map_of(table), schema)
        named = replace(mapped, source_table=self.table_names.get(table, schema.source_table))
        return replace(named, soft_delete=self.deletes == "soft") if self.deletes else named

    def declares_as(self, other: Destination) -> bool:
        """Return whether two declarations are equal, whatever their paused state and time are."""
        return replace(self, paused=False, declared_ms=0) == replace(
            other, paused=False, declared_ms=0
        )


@dataclass(frozen=True, slots=True)
class Destinations:
    """All declared destinations of one gateway, as one versioned document."""

    version: int = 0
    by_name: Mapping[str, Destination] = field(default_factory=lambda: MappingProxyType({}))
    removed_ms: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """By secret, when a destination that used it was removed; forgotten after `QUIET_MS`."""
    unknown: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    no_lake: frozenset[str] = frozenset()
    """Tables, or `EVERY_TABLE`, that do not go to the lake, as a destination is in its place. They
    stay without one when that is removed: the lake would lack what came before."""

    def in_lake(self, table: str) -> bool:
        """Return whether a table's batches go to the lake."""
        return table not in self.no_lake and EVERY_TABLE not in self.no_lake

    def wanting(self, table: str) -> Iterator[Destination]:
        """Return the destinations that may receive rows of a table, in order of name."""
        return (self.by_name[name] for name in sorted(self.by_name)
                if self.by_name[name].wants(table))  # fmt: skip

    def with_one(self, destination: Destination) -> Destinations:
        """Return the next version, with a destination added or changed."""
        after = self._next({**self.by_name, destination.name: destination})
        return after if destination.lake else replace(
            after, no_lake=after.no_lake | (destination.tables or {EVERY_TABLE})
        )  # fmt: skip

    def without(self, name: str, now_ms: int) -> Destinations:
        """Return the next version, without a destination."""
        left = self._next({key: one for key, one in self.by_name.items() if key != name})
        late = {key: ms for key, ms in self.removed_ms.items() if now_ms - ms < QUIET_MS}
        removed = {**late, self.by_name[name].secret: now_ms}
        return replace(left, removed_ms=MappingProxyType(removed))

    def quiet_in_ms(self, secret: str, now_ms: int) -> int:
        """Return how long a process may still write to a removed destination."""
        removed_ms = self.removed_ms.get(secret)
        return 0 if removed_ms is None else max(0, removed_ms + QUIET_MS - now_ms)

    def _next(self, by_name: Mapping[str, Destination]) -> Destinations:
        return replace(self, version=self.version + 1, by_name=MappingProxyType(dict(by_name)))


NO_DESTINATIONS: Final = Destinations()


def destination_to_json(destination: Destination) -> dict[str, Any]:
    """Write a declaration as plain JSON values, with its paused state."""
    mapped = {table: map_to_json(one) for table, one in sorted(destination.maps.items())}
    return {
        **destination.unknown,
        "name": destination.name,
        "kind": destination.kind,
        "secret": destination.secret,
        "tables": sorted(destination.tables),
        "buckets": rules_to_json(destination.rows)["buckets"],
        "tableNames": dict(sorted(destination.table_names.items())),
        "deletes": destination.deletes,
        "paused": destination.paused,
        "declaredMs": destination.declared_ms,
        **({"map": mapped} if mapped else {}),
        **archive_to_json(destination.archive),
        **({} if destination.lake else {"lake": False}),
    }


def destinations_to_json(destinations: Destinations) -> dict[str, Any]:
    """Write the document as plain JSON values; `destinations_from_json` reads it back."""
    stored = [
        destination_to_json(one) | {"fillAsked": one.fill_asked}
        for _, one in sorted(destinations.by_name.items())
    ]
    # A release without maps would send what maps hide, so the list that it reads has none with
    # maps.
    plain = [one for one in stored if "map" not in one]
    mapped = [one for one in stored if "map" in one]
    return {
        **destinations.unknown,
        **({"noLake": sorted(destinations.no_lake)} if destinations.no_lake else {}),
        "format": WRITES,
        "version": destinations.version,
        "destinations": plain,
        "removedMs": dict(sorted(destinations.removed_ms.items())),
    } | ({"mapped": mapped} if mapped else {})


def destinations_from_json(body: Mapping[str, Any]) -> Destinations:
    """Read what `destinations_to_json` wrote, in any release; see `lakesync.core.config`.

    Raises:
        UpgradeRequired: only a later release can read it.
    """
    check_format(body["format"], "the list of destinations")
    read = [
        destination_from_stored(item) for item in (*body["destinations"], *body.get("mapped", ()))
    ]
    known = {"format", "version", "destinations", "removedMs", "mapped", "noLake"}
    return Destinations(
        body["version"],
        MappingProxyType({one.name: one for one in read}),
        MappingProxyType(body["removedMs"]),
        {name: body[name] for name in body if name not in known},
        frozenset(body.get("noLake", ())),
    )


_STORED_FIELDS: Final = frozenset(
    {*destination_to_json(Destination("", "", "")), "fillAsked", "map", "archive", "lake"}
)


def destination_from_stored(item: Mapping[str, Any]) -> Destination:
    """Read what `destination_to_json` wrote, in any release."""
    return Destination(
        item["name"],
        item["kind"],
        item["secret"],
        frozenset(item["tables"]),
        rules_from_stored({"version": 1, "buckets": item["buckets"]}),
        MappingProxyType(item["tableNames"]),
        item["deletes"],
        MappingProxyType(
            {table: map_from_stored(one) for table, one in item.get("map", {}).items()}
        ),
        item["paused"],
        item["declaredMs"],
        item.get("fillAsked", True),
        {name: item[name] for name in item if name not in _STORED_FIELDS},
        archive_from_stored(item.get("archive")),
        item.get("lake", True),
    )
