"""Destinations: databases besides the lake that receive a gateway's batches, as declared.

A declaration says which tables are sent, which of their rows (buckets of filters, as in sync
rules), and under which names; and where the destination's old history is archived. Other rows would
need another filling, so a destination is changed by removing it and adding it again. Only its
paused state can change in place. A declaration that is received is read strictly, every fault with
its path.
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
    MapReader,
    map_from_stored,
    map_schema,
    map_to_json,
)
from lakesync.core.config import WRITES, check_format
from lakesync.core.deliveries import Pace, pace_of
from lakesync.core.names import first_spellings, folded, is_table_name
from lakesync.core.rules import CLAIM_PREFIX, NO_RULES, SyncRules, rules_from_stored, rules_to_json
from lakesync.core.rules_json import read_rules
from lakesync.core.schema import SOURCE_TABLE_CHARACTERS_MAX
from lakesync.core.visibility import Viewer
from lakesync.core.wording import plural
from lakesync.errors import DestinationRefused, Fault, RulesRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from lakesync.core.config import GatewayConfig
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


# --- a declaration as received --------------------------------------------------------------------


_RECEIVED_FIELDS: Final = frozenset(
    {"kind", "secret", "tables", "buckets", "tableNames", "deletes", "map", "archive", "lake"}
)
_FAULTS_SHOWN_MAX: Final = 3
_TABLE_RULE: Final = "a table is named by a letter or _, then letters, digits or _"


def read_destination(
    name: str, body: object, config: GatewayConfig, kinds: Collection[str] = KINDS
) -> Destination:
    """Read a declaration, as ``POST /admin/destinations`` accepts it.

    Args:
        name: the destination's name.
        body: the declaration.
        config: the gateway's; tables and columns that have a schema are checked against it.
        kinds: the kinds of databases that there are.

    Raises:
        DestinationRefused: it is malformed, or does not fit the schemas; names every fault.
    """
    reader = DestinationReader(config, kinds)
    destination = reader.destination(name, body)
    if reader.faults:
        listed = "; ".join(
            f"{fault.path}: {fault.message}" for fault in reader.faults[:_FAULTS_SHOWN_MAX]
        )
        raise DestinationRefused(
            f"{plural(len(reader.faults), 'fault')} in the destination: {listed}",
            faults=reader.faults,
        )
    return destination


class DestinationReader:
    """Reads a declaration, and continues after a fault.

    Args:
        config: the gateway's, whose tables and columns are checked.
        kinds: the kinds of databases that there are.
        registered: whether only a table with a registered schema may have another name there.
    """

    def __init__(
        self, config: GatewayConfig, kinds: Collection[str] = KINDS, *, registered: bool = True
    ) -> None:
        self._config = config
        self._kinds = kinds
        self._registered = registered
        self._spellings = first_spellings([*config.schemas, *config.tables])
        self.faults: list[Fault] = []

    def fault(self, path: str, message: str) -> None:
        """Note a fault."""
        self.faults.append(Fault(path, message))

    def destination(self, name: str, body: object) -> Destination:
        """Read it; the result is valid only if there is no fault."""
        if not NAME.fullmatch(name) or name == LAKE:
            self.fault("name", "a destination is named by 1 to 32 lower-case letters, digits or -, "
                       "a letter first; lake is there already")  # fmt: skip
        if not isinstance(body, dict):
            self.fault("body", "must be an object")
            return Destination(name, "", "")
        for unknown in sorted(map(str, body.keys() - _RECEIVED_FIELDS)):
            self.fault(unknown[:64], "there is no such field")
        kind = body.get("kind")
        if kind not in self._kinds:
            self.fault("kind", f"must be one of {', '.join(self._kinds)}")
        secret = body.get("secret")
        self._check_secret("secret", secret)
        deletes = body.get("deletes", "")
        if deletes not in {"", *DELETES}:
            self.fault("deletes", f"must be one of {', '.join(DELETES)}; without it each table's "
                       "schema decides")  # fmt: skip
        tables = frozenset(self._tables(body.get("tables", [])))
        if kind in {"s3", ICEBERG} and body.get("tableNames"):
            self.fault("tableNames", "a table has its own name there, in words: leave it out")
        if kind == ICEBERG and deletes == "hard":
            self.fault("deletes", "a deleted row stays in an Iceberg table, with _is_deleted and "
                       "without its values: leave it out")  # fmt: skip
        if kind == ICEBERG and self._registered:
            self.fault("kind", "the gateway's tables are Iceberg already, in its lake; what leads "
                       "from that to other tables is a flow")  # fmt: skip
        return Destination(
            name,
            str(kind),
            str(secret),
            tables,
            rows := self._rows(body.get("buckets", [])),
            MappingProxyType(self._names(body.get("tableNames", {}), tables)),
            str(deletes),
            MappingProxyType(self._maps(body.get("map", {}), tables, rows)),
            archive=self._archive(body) if "archive" in body else None,
            lake=self._lake(body) if "lake" in body else True,
        )

    def _lake(self, body: Mapping[str, Any]) -> bool:
        value = body["lake"]
        if not isinstance(value, bool):
            self.fault("lake", "must be true or false: whether its tables also go to the lake")
            return True
        if value:
            return True
        if not self._registered or body.get("kind") not in INSTEAD_OF_LAKE:
            self.fault("lake", "only a destination of a gateway can be in the lake's place, of "
                       f"{' or '.join(INSTEAD_OF_LAKE)}: leave it out")  # fmt: skip
        if body.get("buckets"):
            self.fault("lake", "in the lake's place it has all rows: leave buckets out")
        return False

    def _check_secret(self, at: str, secret: object) -> None:
        if not isinstance(secret, str) or not SECRET.fullmatch(secret):
            self.fault(at, "must name the secret that holds the URL, without the prefix of "
                       "the gateway's secrets: 1 to 64 letters, digits, _ . or -")  # fmt: skip

    def _archive(self, body: Mapping[str, Any]) -> Archive | None:
        value = body["archive"]
        if not self._registered or body.get("kind") in UNARCHIVED_KINDS:
            self.fault("archive", "only a destination has one, and none of "
                       f"{' or '.join(UNARCHIVED_KINDS)}: leave it out")  # fmt: skip
        if not isinstance(value, dict):
            self.fault("archive", 'must be {"secret": …, "afterDays": …}')
            return None
        for unknown in sorted(map(str, value.keys() - {"secret", "afterDays", "kind"})):
            self.fault(f"archive.{unknown[:64]}", "there is no such field")
        self._check_secret("archive.secret", value.get("secret"))
        if value.get("secret") == body.get("secret"):
            self.fault("archive.secret", "is the database's own: an archive is elsewhere")
        kind = value.get("kind", BUCKET)
        if kind not in ARCHIVE_KINDS:
            self.fault("archive.kind", f"must be {' or '.join(ARCHIVE_KINDS)}")
        elif kind != BUCKET and body.get("kind") == "bigquery":
            self.fault("archive.kind", f"of BigQuery must be {BUCKET}: its job reaches no database")
        days = value.get("afterDays")
        if type(days) is not int or not 1 <= days <= ARCHIVE_DAYS_MAX:
            self.fault("archive.afterDays", f"must be a whole number from 1 to {ARCHIVE_DAYS_MAX}")
            return None
        return Archive(str(value.get("secret")), days, kind if kind in ARCHIVE_KINDS else BUCKET)

    def _tables(self, value: object) -> Iterator[str]:
        if not isinstance(value, list):
            self.fault("tables", "must be a list; an empty one means all tables")
            return
        for place, table in enumerate(value):
            at = f"tables[{place}]"
            if self._is_table(table, at) and value.index(table) != place:
                self.fault(at, f"the table {table} is named twice")
            elif isinstance(table, str):
                yield table

    def _is_table(self, table: object, at: str) -> bool:
        if not isinstance(table, str) or not is_table_name(table):
            self.fault(at, _TABLE_RULE)
        elif (first := self._spellings.get(folded(table), table)) != table:
            self.fault(at, f"the table {table} is spelled {first}")
        else:
            return True
        return False

    def _rows(self, buckets: object) -> SyncRules:
        """Read which rows are sent there: buckets as in sync rules, without a client."""
        if buckets == []:
            return NO_RULES
        before = len(self.faults)
        self.faults += _of_clients(buckets)
        try:
            rules, _ = read_rules(
                {"buckets": buckets}, self._config.schemas, self._config.tables, strict=False
            )
        except RulesRefused as refused:
            self.faults += refused.faults
            return NO_RULES
        return rules if len(self.faults) == before else NO_RULES

    def _names(self, value: object, tables: frozenset[str]) -> dict[str, str]:
        if not isinstance(value, dict):
            self.fault("tableNames", "must be an object of names there, by table")
            return {}
        taken: dict[str, str] = {}
        for table, name in value.items():
            at = f"tableNames.{str(table)[:64]}"
            if not self._is_table(table, at):
                continue
            if tables and table not in tables:
                self.fault(at, f"the table {table} is none of tables")
            if self._registered and table not in self._config.schemas:
                self.fault(at, f"register the schema of {table} first: only a table with a schema "
                           "may have another name there")  # fmt: skip
            if not isinstance(name, str) or not 0 < len(name) <= SOURCE_TABLE_CHARACTERS_MAX:
                self.fault(at, f"must be a name of 1 to {SOURCE_TABLE_CHARACTERS_MAX} characters")
            elif first := taken.get(folded(name)):
                self.fault(at, f"the table {first} has that name there")
            else:
                taken[folded(name)] = table
        return {str(table): str(name) for table, name in value.items()}

    def _maps(self, value: object, tables: frozenset[str], rows: SyncRules) -> dict[str, ColumnMap]:
        reader = MapReader(self._config.schemas, tables or None)
        maps = reader.maps(value)
        self.faults += reader.faults
        for table, one in maps.items():
            moved = sorted(column for column in rows.columns(table)
                           if one.target(column) != column or column in one.hash)  # fmt: skip
            if moved and self._config.appends(table):
                self.fault(f"map.{table}", f"the filter looks at {moved[0]}, by which events are "
                           "told apart there as well: let it go through as it is")  # fmt: skip
        return maps


def _of_clients(buckets: object) -> Iterator[Fault]:
    """Yield the faults for parts of buckets that only make sense for a client."""
    for place, bucket in enumerate(_list(buckets)):
        fields: Mapping[str, Any] = bucket if isinstance(bucket, dict) else {}
        at = f"buckets[{place}]"
        if "write" in fields:
            yield Fault(f"{at}.write", "nobody writes through a destination; leave it out")
        for number, item in enumerate(_list(fields.get("filters"))):
            value = item.get("value") if isinstance(item, dict) else None
            if isinstance(value, str) and value.startswith(CLAIM_PREFIX):
                message = "a destination has no token; name the values themselves"
                yield Fault(f"{at}.filters[{number}].value", message)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
