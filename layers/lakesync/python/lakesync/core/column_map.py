"""Column maps: how a row's columns change on their way to a destination. Pure.

A map renames, drops and hashes columns, and adds constant columns. A column that the map does not
name passes unchanged, so a new column of the source is a new column of the destination. If the map
produces a name that another column has, the mapped column replaces that column.

Mapping commutes with merging: mapped deltas merge to the mapped form of the row that the original
deltas merge to. Laws Y1-Y3: ``docs/spec/flows.md``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.delta import NULL, Op, canonical, known_delta, parse
from lakesync.core.merge import RowState
from lakesync.core.names import folded
from lakesync.core.schema import Column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import CanonicalJson, Delta
    from lakesync.core.schema import TableSchema

MAPPED_COLUMNS_MAX: Final = 200
"""Columns that the map of one table may name, plus constants that it may add."""
CONSTANT_BYTES_MAX: Final = 1_024
"""One constant, as JSON: it is stored in every row."""


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """How the columns of one table change."""

    rename: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By column, its name at the destination."""
    drop: frozenset[str] = frozenset()
    constant: Mapping[str, CanonicalJson] = field(default_factory=lambda: MappingProxyType({}))
    """By name at the destination, the value that every row has there."""
    hash: frozenset[str] = frozenset()
    """Columns that are replaced by their SHA-256; null stays null."""
    _taken: frozenset[str] = field(init=False, compare=False, repr=False)
    """Names at the destination that the map itself assigns, folded."""

    def __post_init__(self) -> None:
        taken = frozenset(map(folded, (*self.rename.values(), *self.constant)))
        object.__setattr__(self, "_taken", taken)

    def target(self, column: str) -> str | None:
        """Return a column's name at the destination; None if the column is not sent there."""
        if column in self.drop:
            return None
        if column in self.rename:
            return self.rename[column]
        return None if folded(column) in self._taken else column

    def made(self, column: str, value: CanonicalJson) -> CanonicalJson:
        """Return the value that is sent for a value of a column."""
        return hashed(value) if column in self.hash and value != NULL else value


NO_MAP: Final = ColumnMap()
"""The map that passes all columns unchanged."""


def hashed(value: CanonicalJson) -> CanonicalJson:
    """Return the SHA-256 of a value in hex: of a text's UTF-8, else of the canonical bytes."""
    raw = parse(value).encode() if value[:1] == b'"' else value
    return canonical(hashlib.sha256(raw).hexdigest())


def map_delta(column_map: ColumnMap, delta: Delta, *, delete_wins: bool = False) -> Delta:
    """Return a delta as the destination receives it, with the same stamp and client.

    A row may exist only because of its columns, and must still exist when these are dropped. So an
    update that loses a column becomes an insert of the remaining columns. In a delete-wins table it
    stays an update.
    """
    if column_map == NO_MAP or delta.op not in {Op.INSERT, Op.UPDATE}:
        return delta
    if delta.op is Op.UPDATE and not delta.columns:
        return delta  # it changes nothing, before and after mapping
    columns = [
        (target, column_map.made(name, value))
        for name, value in delta.columns
        if (target := column_map.target(name)) is not None
    ]
    op = Op.INSERT if len(columns) < len(delta.columns) and not delete_wins else delta.op
    columns += sorted(column_map.constant.items())
    return known_delta(op, delta.table, delta.row_id, delta.client_id, delta.hlc, tuple(columns))


def map_state(column_map: ColumnMap, state: RowState, *, delete_wins: bool = False) -> RowState:
    """Return a row as the destination receives it: what its mapped deltas merge to."""
    if column_map == NO_MAP or not (state.alive or state.columns):
        return state
    alive, columns = state.alive, {}
    latest: tuple[Stamp, str] = (state.alive, "")
    for name, (hlc, client_id, value) in state.columns.items():
        latest = max(latest, (hlc, client_id))
        target = column_map.target(name)
        if target is None:
            alive = alive if delete_wins else max(alive, hlc)
        else:
            columns[target] = (hlc, client_id, column_map.made(name, value))
    for name, value in column_map.constant.items():
        columns[name] = (*latest, value)
    return RowState(alive, state.deleted, columns)


def map_schema(column_map: ColumnMap, schema: TableSchema) -> TableSchema:
    """Return a table's schema as the destination has it."""
    if column_map == NO_MAP:
        return schema
    columns = [
        replace(one, name=target, type="string" if one.name in column_map.hash else one.type)
        for one in schema.columns
        if (target := column_map.target(one.name)) is not None
    ]
    columns += [Column(name, type_of(value)) for name, value in sorted(column_map.constant.items())]
    external = schema.external_id_column
    return replace(
        schema,
        columns=tuple(columns),
        primary_key=tuple(column_map.target(name) or name for name in schema.primary_key),
        external_id_column=external and column_map.target(external),
        partition=tuple(
            str(replace(field, column=target))
            for field in schema.partition_fields
            if (target := column_map.target(field.column)) is not None
        ),
        sort=tuple(filter(None, map(column_map.target, schema.sort))),
    )


def type_of(value: CanonicalJson) -> str:
    """Return the column type of a constant."""
    parsed = parse(value)
    if isinstance(parsed, bool):
        return "boolean"
    if isinstance(parsed, int | float):
        return "number"
    return "string" if isinstance(parsed, str) else "json"


def map_to_json(column_map: ColumnMap) -> dict[str, Any]:
    """Write a map as it is declared."""
    return {
        "rename": dict(sorted(column_map.rename.items())),
        "drop": sorted(column_map.drop),
        "constant": {name: parse(raw) for name, raw in sorted(column_map.constant.items())},
        "hash": sorted(column_map.hash),
    }


def map_from_stored(body: Mapping[str, Any]) -> ColumnMap:
    """Read what `map_to_json` wrote."""
    return ColumnMap(
        MappingProxyType(dict(body["rename"])),
        frozenset(body["drop"]),
        MappingProxyType({name: canonical(value) for name, value in body["constant"].items()}),
        frozenset(body["hash"]),
    )
