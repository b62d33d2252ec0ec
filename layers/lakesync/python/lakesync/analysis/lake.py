"""Reads the gateway's Iceberg tables as Arrow tables, with the names of the wire.

Names, kinds and marks are those of ``docs/spec/lake.md``. A property of the table gives the type of
each column and the name that it was written under, by field id; a snapshot's summary says up to
which commit the table goes. The catalogue is opened with the operator's own rights.

What a query reads: DuckDB plans it over tables of one empty row, and the plan shows which columns
each scan reads and which filters it applies. A filter that is not understood here is left out, so
more is read than needed, never less; DuckDB applies all of them again.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.analysis.connection import UsageFault
from lakesync.analysis.past import Moment, chosen, pinned
from lakesync.core.names import CHANGES_SUFFIX, lake_database
from lakesync.materialise.lake_catalogue import LakeCatalogue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from lakesync.analysis.connection import Aws
    from lakesync.analysis.past import AsOf
    from lakesync.materialise.views import GlueViews

# --- the catalogue --------------------------------------------------------------------------------


_OUTPUT: Final = "LakeCatalogue"


def described(aws: Aws) -> LakeCatalogue:
    """Return the stack's catalogue; a stack of an older release has Glue's."""
    text = aws.outputs.get(_OUTPUT)
    return LakeCatalogue.from_json(text) if text else LakeCatalogue()


def open_catalogue(aws: Aws) -> Any:
    from pyiceberg.catalog import load_catalog

    catalogue = described(aws)
    secret = catalogue.read_secret(partial(aws.client, "secretsmanager"))
    settings = catalogue.python_settings(aws.region, aws.endpoint, secret, aws.credentials())
    return load_catalog("lake", **settings)


def glue_views(aws: Aws) -> GlueViews:
    """Return Athena's views, if the stack's catalogue is Glue's: Athena looks for them there."""
    from lakesync.materialise.views import GlueViews

    if not described(aws).is_glue:
        raise UsageFault("the lake's catalogue is not Glue's: run the statements where you query")
    return GlueViews(aws.client("glue"))


# --- what a query reads ---------------------------------------------------------------------------


_NAME: Final = r'"((?:[^"]|"")+)"'
_LITERAL: Final = (
    r"(?:(?:DATE|TIMESTAMPTZ|TIMESTAMP) )?'(?:[^']|'')*'|-?\d+|true|false"
    r"|CAST\('-?[\d.]+' AS DECIMAL\(\d+, ?\d+\)\)"
)
_COMPARED: Final = re.compile(rf"{_NAME} (=|<|<=|>|>=) ({_LITERAL})")
_LISTED: Final = re.compile(rf"{_NAME} IN \(((?:{_LITERAL})(?:, (?:{_LITERAL}))*)\)")
_TEXT: Final = re.compile(r"'(?:[^']|'')*'")
_AND: Final = ") AND ("
_ONE: Final = re.compile(_LITERAL)
_SCAN: Final = "PYTHON_ARROW_SCAN"


class Comparison(NamedTuple):
    """A filter on one column."""

    column: str
    operator: str
    """``in``, or a comparison operator."""
    values: tuple[object, ...]


class Needed(NamedTuple):
    """The columns and rows that are read of a table."""

    columns: frozenset[str]
    comparisons: tuple[Comparison, ...] = ()


def needed(database: Any, sql: str, schemas: Mapping[str, pa.Schema]) -> dict[str, Needed]:
    """Return what a query reads of each of its tables; in ``database`` their names are free."""
    import pyarrow as pa
    from pyarrow import dataset

    for name, schema in schemas.items():
        row = pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)
        database.register(name, dataset.dataset(row))
    try:
        scans = list(_scans(database, sql))
    except (IndexError, KeyError, TypeError, ValueError):  # no plan, as for two statements
        return {name: Needed(frozenset(schema.names)) for name, schema in schemas.items()}
    finally:
        for name in schemas:
            database.unregister(name)
    columns = {name for scan in scans for name in _listed(scan.get("Projections"))}
    filters = [text for scan in scans for text in _listed(scan.get("Filters"))]
    columns |= {name for text in filters for name in _names(text)}
    comparisons = [one for text in filters for one in comparisons_in(text)]
    # A plan does not name a scan's table, so filters are used only if there is one table.
    pushed = tuple(comparisons) if len(scans) == 1 else ()
    return {
        name: Needed(frozenset(columns & set(schema.names)) or frozenset(schema.names[:1]), pushed)
        for name, schema in schemas.items()
    }


def comparisons_in(text: str) -> Iterator[Comparison]:
    """Yield the comparisons of a pushed filter, as far as they can be parsed."""
    inner = text.strip()
    while inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1]
    # Text that contains what looks like the end of a filter is not parsed.
    if " OR " in inner or any(_AND in text for text in _TEXT.findall(inner)):
        return
    for part in inner.split(_AND):
        if match := _COMPARED.fullmatch(part):
            column, operator, literal = match.groups()
            yield Comparison(column.replace('""', '"'), operator, (_value(literal),))
        elif match := _LISTED.fullmatch(part):
            values = tuple(_value(one) for one in _ONE.findall(match[2]))
            yield Comparison(match[1].replace('""', '"'), "in", values)


def as_expression(comparisons: tuple[Comparison, ...], lake_names: Mapping[str, str]) -> Any:
    """Return comparisons, by the names that columns were written under, for PyIceberg."""
    from pyiceberg import expressions

    make: Any = expressions  # its own types know nothing of positions
    kinds = {
        "=": make.EqualTo,
        "<": make.LessThan,
        "<=": make.LessThanOrEqual,
        ">": make.GreaterThan,
        ">=": make.GreaterThanOrEqual,
    }
    whole = make.AlwaysTrue()
    for one in comparisons:
        name = lake_names.get(one.column, one.column)
        is_list = one.operator == "in"
        narrower = (
            make.In(name, one.values) if is_list else kinds[one.operator](name, one.values[0])
        )
        whole = make.And(whole, narrower)
    return whole


def _scans(database: Any, sql: str) -> Iterator[dict[str, Any]]:
    rows = database.execute(f"EXPLAIN (FORMAT json) {sql}").fetchall()
    waiting = [node for row in rows for node in json.loads(row[1])]
    while waiting:
        node = waiting.pop()
        if node["name"].strip() == _SCAN:
            yield node["extra_info"]
        waiting += node.get("children", [])


def _listed(value: object) -> list[str]:
    if value is None:
        return []
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _names(text: str) -> Iterator[str]:
    # Without literals: a text may contain what looks like a name.
    for name in re.findall(_NAME, _TEXT.sub("", text)):
        yield name.replace('""', '"')


def _value(literal: str) -> object:
    if literal.startswith("CAST("):
        return Decimal(literal.split("'")[1])
    if literal in {"true", "false"}:
        return literal == "true"
    kind, quote, text = literal.partition("'")
    if not quote:
        return int(literal)
    text = text.removesuffix("'").replace("''", "'")
    if kind.startswith("TIMESTAMP"):
        text = re.sub(r"([+-]\d\d)$", r"\1:00", text.replace(" ", "T"))
    return text


# --- the tables -----------------------------------------------------------------------------------


ROW_ID: Final = "_id"
"""The column that holds a row's id."""
IS_DELETED: Final = "_is_deleted"
HIDDEN: Final = frozenset({"_stamps", IS_DELETED, "_columns", "_synced_at", "_texts"})
"""LakeSync's own columns, which queries of rows do not show."""
_OF_ROWS: Final = frozenset({"_updated_at", "_commit", "_hlc", "_client_id"})
"""Own columns that are shown of a history, where no row is deleted, but not of rows."""
_OP: Final = "_op"
_MARK: Final = "lakesync.commit"
_MARK_TAG: Final = "lakesync"
_COLUMNS: Final = "lakesync.columns"


class Lake:
    """One gateway's tables in the stack's catalogue, as of their first use."""

    def __init__(self, aws: Aws, gateway: str, only: str | None = None) -> None:
        """Find the tables; if the lake's name of ``only`` one is given, no other is opened."""
        self._aws = aws
        self._only = only
        self._database = lake_database(aws.output("DatabasePrefix"), gateway)

    def names(self) -> list[str]:
        """Return the tables' names on the wire, each followed by the name of its history."""
        return sorted(self._tables)

    def names_of(self, table: str | None) -> list[str]:
        own = {table, f"{table}{CHANGES_SUFFIX}"}
        return [name for name in self.names() if table is None or name in own]

    def table(self, name: str) -> Any:
        return self._tables[name]

    def schema(
        self, name: str, wanted: AsOf | None = None, *, all_columns: bool = False
    ) -> pa.Schema:
        import pyarrow as pa
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        table = self._tables[name]
        visible, snapshot_id = self._visible(name, wanted, all_columns=all_columns)
        scan = table.scan(selected_fields=visible, snapshot_id=snapshot_id)
        schema: pa.Schema = schema_to_pyarrow(scan.projection())
        names = written_names(schema.names, written_columns(table))
        return pa.schema([field.with_name(new) for field, new in zip(schema, names, strict=True)])

    def read(
        self,
        name: str,
        wanted: AsOf | None = None,
        *,
        all_columns: bool = False,
        needed: Needed | None = None,
    ) -> pa.Table:
        """Return a table's current rows, or those of a point in the past.

        Args:
            name: the table's name, as `names` returns it.
            wanted: a point in the past; None for now.
            all_columns: with LakeSync's own columns, and with rows that are deleted.
            needed: the columns and rows that suffice; None for all.
        """
        from pyiceberg import expressions

        make: Any = expressions  # its own types know nothing of positions
        table = self._tables[name]
        visible, snapshot_id = self._visible(name, wanted, all_columns=all_columns)
        names = written_names(list(visible), written_columns(table))
        lake_names = dict(zip(names, visible, strict=True))
        # The filter is pushed down: statistics exclude files that have only deleted rows.
        rows: Any = make.AlwaysTrue()
        if IS_DELETED in {field.name for field in table.schema().fields} and not all_columns:
            rows = make.EqualTo(IS_DELETED, literal=False)
        if needed is not None:
            visible = tuple(lake_names[one] for one in names if one in needed.columns)
            rows = make.And(rows, as_expression(needed.comparisons, lake_names))
        scanned = table.scan(rows, selected_fields=visible, snapshot_id=snapshot_id).to_arrow()
        back = {lake: written for written, lake in lake_names.items()}
        return scanned.rename_columns([back[one] for one in scanned.column_names])

    def _visible(
        self, name: str, wanted: AsOf | None, *, all_columns: bool
    ) -> tuple[tuple[str, ...], int | None]:
        """Return the columns that are shown, and the snapshot at a point in time."""
        table = self._tables[name]
        snapshot_id = None if wanted is None else self._snapshot_id(name, table, wanted)
        fields = [field.name for field in table.scan(snapshot_id=snapshot_id).projection().fields]
        hidden = HIDDEN | _OF_ROWS if IS_DELETED in fields else HIDDEN
        shown = (field for field in fields if all_columns or field not in hidden)
        return tuple(shown), snapshot_id

    def copies(self, name: str, row_id: str) -> int:
        """Count the snapshots of a table in which values of a row can be read."""
        from pyiceberg import expressions

        if name not in self._tables:
            return 0
        table = self._tables[name]
        fields = {field.name for field in table.schema().fields}
        make: Any = expressions  # its own types know nothing of positions
        wanted = make.EqualTo(ROW_ID, row_id)
        if IS_DELETED in fields:
            wanted = make.And(wanted, make.EqualTo(IS_DELETED, literal=False))
        if _OP in fields:
            wanted = make.And(wanted, make.NotEqualTo(_OP, "DELETE"))
        return sum(
            table.scan(wanted, selected_fields=(ROW_ID,), snapshot_id=each.snapshot_id)
            .to_arrow()
            .num_rows
            > 0
            for each in table.snapshots()
        )

    def _snapshot_id(self, name: str, table: Any, wanted: AsOf) -> int:
        histories = map(history, self._tables.values())
        moment = chosen(pinned(wanted, histories), history(table))
        if moment is None:
            raise UsageFault(
                f"there was nothing in {name} at that moment; its history begins later"
            )
        return moment.snapshot_id

    @cached_property
    def _tables(self) -> dict[str, Any]:
        from pyiceberg.exceptions import NoSuchNamespaceError

        try:
            identifiers = self._catalogue.list_tables(self._database)
        except NoSuchNamespaceError:
            return {}
        wanted = [one for one in identifiers if self._only in {None, one[-1]}]
        tables = [self._catalogue.load_table(identifier) for identifier in wanted]
        return {_written_name(table): table for table in tables}

    @cached_property
    def _catalogue(self) -> Any:
        return open_catalogue(self._aws)


def written_names(names: Sequence[str], written_as: dict[str, str]) -> list[str]:
    """Return the columns' names as they were written, if SQL can distinguish those."""
    written = [written_as.get(name, name) for name in names]
    folded = [name.lower() for name in written]
    return [
        new if folded.count(new.lower()) == 1 else old
        for old, new in zip(names, written, strict=True)
    ]


def _written_name(table: Any) -> str:
    """Return a table's name on the wire; that of its history has the suffix of histories."""
    name: str = table.properties.get("lakesync.table", table.name()[-1])
    return name + CHANGES_SUFFIX if table.properties.get("lakesync.kind") == "changes" else name


def written_columns(table: Any) -> dict[str, str]:
    """Return the name on the wire of each synced column, by its name in the lake."""
    return {name: written for name, (_, written) in declared_columns(table).items()}


def declared_columns(table: Any) -> dict[str, tuple[str, str]]:
    """Get each of a table's own columns by its name there: its type, and its name on the wire."""
    recorded = json.loads(table.properties.get(_COLUMNS, "{}"))
    fields = {field.name: recorded.get(str(field.field_id)) for field in table.schema().fields}
    return {name: (entry[0], entry[1]) for name, entry in fields.items() if entry}


def history(table: Any) -> list[Moment]:
    """Return the snapshots that led to the current one, oldest first, each with its mark.

    Maintenance makes snapshots without a mark: what they hold is what the one before them held. Of
    that one only the tag may be left.
    """
    lineage = []
    snapshot = table.current_snapshot()
    # Of a merge there is one that was never current: rows are added, and not yet replaced.
    was_current = {entry.snapshot_id for entry in table.history()}
    while snapshot is not None:
        if snapshot.snapshot_id in was_current:
            lineage.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    moments: list[Moment] = []
    tagged = table.snapshot_by_name(_MARK_TAG)
    is_before = tagged and lineage and tagged.sequence_number < lineage[-1].sequence_number
    applied = _mark(tagged) if is_before else 0
    for snapshot in reversed(lineage):
        applied = max(applied, _mark(snapshot))
        moments.append(Moment(snapshot.snapshot_id, snapshot.timestamp_ms, applied))
    return moments


def _mark(snapshot: Any) -> int:
    properties = snapshot.summary.additional_properties if snapshot.summary else {}
    return int(properties.get(_MARK, 0))
