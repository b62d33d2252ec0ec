"""Column maps as they are declared: read strictly, every fault with its path."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.column_map import MAPPED_COLUMNS_MAX, ColumnMap
from lakesync.core.names import folded, is_identifier, is_table_name
from lakesync.core.values import canonical
from lakesync.errors import Fault, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from lakesync.core.schema import TableSchema
    from lakesync.core.values import CanonicalJson

_FIELDS: Final = ("rename", "drop", "constant", "hash")
_NAME_RULE: Final = "a column is named by a letter or _, then letters, digits or _, at most 64"
CONSTANT_BYTES_MAX: Final = 1_024
"""One constant, as JSON: it is stored in every row."""


class MapReader:
    """Reads column maps, and continues after a fault.

    Args:
        schemas: of the tables that have one; the columns of other tables are not known.
        tables: the tables that may be named; None for any.
    """

    def __init__(
        self, schemas: Mapping[str, TableSchema], tables: Collection[str] | None = None
    ) -> None:
        self._schemas = schemas
        self._tables = tables
        self.faults: list[Fault] = []

    def maps(self, value: object, at: str = "map") -> dict[str, ColumnMap]:
        """Read the maps of tables; maps that change nothing are left out."""
        if not isinstance(value, dict):
            self._fault(at, "must be an object: by table, what becomes of its columns")
            return {}
        read: dict[str, ColumnMap] = {}
        for table, body in value.items():
            path = f"{at}.{str(table)[:64]}"
            if not isinstance(table, str) or not is_table_name(table):
                self._fault(path, "a table is named by a letter or _, then letters, digits or _")
            elif self._tables is not None and table not in self._tables:
                self._fault(path, f"the table {table} is none of tables")
            else:
                column_map = self._map(body, path, self._schemas.get(table))
                if column_map != ColumnMap():
                    read[table] = column_map
        return read

    def _fault(self, path: str, message: str) -> None:
        self.faults.append(Fault(path, message))

    def _map(self, body: object, at: str, schema: TableSchema | None) -> ColumnMap:
        if not isinstance(body, dict):
            self._fault(at, f"must be an object of {', '.join(_FIELDS)}")
            return ColumnMap()
        for name in sorted(map(str, body.keys() - set(_FIELDS))):
            self._fault(f"{at}.{name[:64]}", "there is no such field")
        before = len(self.faults)
        rename = dict(self._renamed(body.get("rename", {}), f"{at}.rename"))
        drop = list(self._columns(body.get("drop", []), f"{at}.drop"))
        hashes = list(self._columns(body.get("hash", []), f"{at}.hash"))
        constant = dict(self._constants(body.get("constant", {}), f"{at}.constant"))
        named = [*rename, *drop, *hashes]
        if len(named) + len(constant) > MAPPED_COLUMNS_MAX:
            self._fault(at, f"names over {MAPPED_COLUMNS_MAX} columns")
        for field, columns in (("rename", rename), ("hash", hashes)):
            for column in columns:
                if column in drop:
                    self._fault(f"{at}.{field}", f"{column} is dropped as well")
        self._check_targets(at, rename, constant)
        if schema is not None:
            self._check_schema(at, schema, named, drop, hashes)
            self._check_kept(at, schema, {*rename, *drop}, [*rename.values(), *constant])
        if len(self.faults) > before:
            return ColumnMap()
        return ColumnMap(
            MappingProxyType(rename), frozenset(drop), MappingProxyType(constant), frozenset(hashes)
        )

    def _check_targets(
        self, at: str, rename: Mapping[str, str], constant: Mapping[str, CanonicalJson]
    ) -> None:
        """Refuse two columns with one name at the destination."""
        taken: set[str] = set()
        targets = [(f"{at}.rename", name) for name in rename.values()]
        for path, name in [*targets, *((f"{at}.constant", name) for name in constant)]:
            if folded(name) in taken:
                self._fault(path, f"two columns would be {name} at the destination")
            taken.add(folded(name))

    def _check_schema(
        self, at: str, schema: TableSchema, named: list[str], drop: list[str], hashes: list[str]
    ) -> None:
        known = {column.name for column in schema.columns}
        for column in named:
            if column not in known:
                self._fault(at, f"the table {schema.table} has no column {column}")
        if known <= {*drop}:
            self._fault(at, "every column is dropped: leave the table out")
        for key in {*schema.primary_key, *filter(None, [schema.external_id_column])}:
            if key in drop or key in hashes:
                self._fault(at, f"{key} tells the rows of {schema.table} apart: it cannot be "
                            "dropped or hashed")  # fmt: skip

    def _check_kept(
        self, at: str, schema: TableSchema, moved: Collection[str], targets: Collection[str]
    ) -> None:
        kept = {folded(one.name): one.name for one in schema.columns if one.name not in moved}
        for target in targets:
            if column := kept.get(folded(target)):
                self._fault(at, f"{schema.table} has a column {column} already: rename or drop it")

    def _renamed(self, value: object, at: str) -> Iterator[tuple[str, str]]:
        for column, name in self._object(value, at):
            if not isinstance(name, str) or not is_identifier(name):
                self._fault(f"{at}.{column}", _NAME_RULE)
            else:
                yield column, name

    def _constants(self, value: object, at: str) -> Iterator[tuple[str, CanonicalJson]]:
        for column, constant in self._object(value, at):
            try:
                raw = canonical(constant)
            except ValidationFailed as error:
                self._fault(f"{at}.{column}", error.message)
                continue
            if len(raw) > CONSTANT_BYTES_MAX:
                self._fault(f"{at}.{column}", f"is over {CONSTANT_BYTES_MAX} bytes")
            else:
                yield column, raw

    def _columns(self, value: object, at: str) -> Iterator[str]:
        if not isinstance(value, list):
            self._fault(at, "must be a list of columns")
            return
        for place, column in enumerate(value):
            if not isinstance(column, str) or not is_identifier(column):
                self._fault(f"{at}[{place}]", _NAME_RULE)
            elif column in value[:place]:
                self._fault(f"{at}[{place}]", f"{column} is named twice")
            else:
                yield column

    def _object(self, value: object, at: str) -> Iterator[tuple[str, Any]]:
        if not isinstance(value, dict):
            self._fault(at, "must be an object, by column")
            return
        for column, item in value.items():
            if not isinstance(column, str) or not is_identifier(column):
                self._fault(f"{at}.{str(column)[:64]}", _NAME_RULE)
            else:
                yield column, item
