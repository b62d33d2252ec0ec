"""Declarations of destinations as received: read strictly, every fault with its path."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.archive import (
    ARCHIVE_DAYS_MAX,
    ARCHIVE_KINDS,
    BUCKET,
    UNARCHIVED_KINDS,
    Archive,
)
from lakesync.core.column_map_json import MapReader
from lakesync.core.destinations import (
    DELETES,
    ICEBERG,
    INSTEAD_OF_LAKE,
    KINDS,
    LAKE,
    NAME,
    SECRET,
    Destination,
)
from lakesync.core.names import first_spellings, folded, is_table_name
from lakesync.core.plural import plural
from lakesync.core.rules import CLAIM_PREFIX, NO_RULES
from lakesync.core.rules_json import read_rules
from lakesync.core.schema import SOURCE_TABLE_CHARACTERS_MAX
from lakesync.errors import DestinationRefused, Fault, RulesRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from lakesync.core.column_map import ColumnMap
    from lakesync.core.config import GatewayConfig
    from lakesync.core.rules import SyncRules

_FIELDS: Final = frozenset(
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
        for unknown in sorted(map(str, body.keys() - _FIELDS)):
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
        """Read whether its tables also go to the lake."""
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
        """Read where old history is archived."""
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
