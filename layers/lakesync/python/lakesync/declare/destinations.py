"""Destinations and column maps, as administrators declare them.

Flows declare which rows they move in the same way: `DeclaredRows`. Laws D7-D12:
``docs/spec/delivery.md``; Y1-Y3: ``docs/spec/flows.md``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from lakesync.core.column_map import CONSTANT_BYTES_MAX, MAPPED_COLUMNS_MAX, ColumnMap
from lakesync.core.delta import canonical
from lakesync.core.destinations import (
    ARCHIVE_DAYS_MAX,
    ARCHIVE_KINDS,
    BUCKET,
    DELETES,
    ICEBERG,
    INSTEAD_OF_LAKE,
    KINDS,
    LAKE,
    NAME,
    SECRET,
    UNARCHIVED_KINDS,
    Archive,
    Destination,
)
from lakesync.core.names import first_spellings, folded
from lakesync.core.rule_checks import check_rules, misspelled
from lakesync.core.rules import BUCKETS_MAX, Claim, SyncRules
from lakesync.core.schema import SOURCE_TABLE_CHARACTERS_MAX
from lakesync.declare import (
    COLUMN_NAME,
    NOT_GIVEN,
    TABLE_NAME,
    Declaration,
    Form,
    apart_from,
    one_of,
    read,
    refuse,
    text_form,
    whole_number,
)
from lakesync.declare.sync_rules import DeclaredBucket, Tables, named
from lakesync.errors import DestinationRefused, Fault, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from lakesync.core.config import GatewayConfig
    from lakesync.core.schema import TableSchema

# --- column maps ----------------------------------------------------------------------------------


def _constant(value: object) -> bytes:
    try:
        raw = canonical(value)
    except ValidationFailed as error:
        raise ValueError(error.message) from None
    if len(raw) > CONSTANT_BYTES_MAX:
        raise ValueError(f"is over {CONSTANT_BYTES_MAX} bytes")
    return raw


CONSTANT: Final = Form(_constant, {"description": "Any JSON value."})
Columns = list[Annotated[str, COLUMN_NAME]]


class DeclaredMap(Declaration):
    """How the columns of one table change."""

    rename: dict[Annotated[str, COLUMN_NAME], Annotated[str, COLUMN_NAME]] = Field({})
    drop: Columns = Field([])
    constant: dict[Annotated[str, COLUMN_NAME], Annotated[Any, CONSTANT]] = Field(
        {}, description="By column, its value in every row."
    )
    hash: Columns = Field([], description="Their SHA-256 goes there.")

    def made(self) -> ColumnMap:
        return ColumnMap(
            MappingProxyType(_sound(self.rename)),
            frozenset(filter(None, self.drop or ())),
            MappingProxyType(_sound(self.constant)),
            frozenset(filter(None, self.hash or ())),
        )


def _sound(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: one for name, one in (values or {}).items() if name and one is not None}


def map_faults(declared: DeclaredMap, at: str, schema: TableSchema | None) -> Iterator[Fault]:
    """Yield what is wrong with a map of sound names; ``at`` is its path."""
    made = declared.made()
    for part, listed in (("drop", declared.drop), ("hash", declared.hash)):
        for place, column in enumerate(listed or ()):
            if column and column in listed[:place]:
                yield Fault(f"{at}.{part}[{place}]", f"{column} is named twice")
    if len(made.rename) + len(made.drop) + len(made.hash) + len(made.constant) > MAPPED_COLUMNS_MAX:
        yield Fault(at, f"names over {MAPPED_COLUMNS_MAX} columns")
    for part, columns in (("rename", made.rename.keys()), ("hash", made.hash)):
        for name in sorted(columns & made.drop):
            yield Fault(f"{at}.{part}", f"{name} is dropped as well")
    yield from _same_targets(made, at)
    if schema is not None:
        yield from _map_misfits(made, at, schema)


def _same_targets(made: ColumnMap, at: str) -> Iterator[Fault]:
    taken: set[str] = set()
    targets = [("rename", name) for name in made.rename.values()]
    for part, name in [*targets, *(("constant", name) for name in made.constant)]:
        if folded(name) in taken:
            yield Fault(f"{at}.{part}", f"two columns would be {name} at the destination")
        taken.add(folded(name))


def _map_misfits(made: ColumnMap, at: str, schema: TableSchema) -> Iterator[Fault]:
    known = {column.name for column in schema.columns}
    for column in sorted({*made.rename, *made.drop, *made.hash} - known):
        yield Fault(at, f"the table {schema.table} has no column {column}")
    if known <= made.drop:
        yield Fault(at, "every column is dropped: leave the table out")
    for key in sorted({*schema.primary_key, *filter(None, [schema.external_id_column])}):
        if key in made.drop or key in made.hash:
            yield Fault(at, f"{key} tells the rows of {schema.table} apart: it cannot be dropped "
                        "or hashed")  # fmt: skip
    kept = {folded(name): name for name in known - {*made.rename, *made.drop}}
    for target in (*made.rename.values(), *made.constant):
        if own := kept.get(folded(target)):
            yield Fault(at, f"{schema.table} has a column {own} already: rename or drop it")


# --- which rows -----------------------------------------------------------------------------------


Buckets = Annotated[
    list[DeclaredBucket],
    Field(
        max_length=BUCKETS_MAX,
        description="Which rows, as in sync rules, without claims. None: all rows.",
    ),
]


class DeclaredRows(Declaration):
    """Which tables go somewhere, and how their columns change."""

    tables: Tables = Field([])
    map: dict[Annotated[str, TABLE_NAME], DeclaredMap] = Field(
        {}, description="By table, what becomes of its columns; buckets decide before it."
    )

    def maps(self) -> dict[str, ColumnMap]:
        read = {table: one.made() for table, one in _sound(self.map).items()}
        return {table: one for table, one in read.items() if one != ColumnMap()}


def rows_of(buckets: Sequence[DeclaredBucket] | None) -> SyncRules:
    return SyncRules(buckets=tuple(each.made() for each in buckets or ()))


def rows_faults(
    declared: DeclaredRows,
    buckets: Sequence[DeclaredBucket] | None,
    at: str,
    config: GatewayConfig,
) -> Iterator[Fault]:
    """Yield what is wrong with a choice of rows; ``at`` is the path of its buckets."""
    spellings = first_spellings([*config.schemas, *config.tables])
    tables = declared.tables or []
    for place, table in enumerate(tables):
        if table and (message := misspelled(table, spellings)):
            yield Fault(f"tables[{place}]", message)
        elif table and table in tables[:place]:
            yield Fault(f"tables[{place}]", f"the table {table} is named twice")
    for place, bucket in enumerate(buckets or ()):
        yield from _of_clients(bucket, f"{at}[{place}]")
    lists = {f"buckets[{place}].tables": one.tables for place, one in enumerate(buckets or ())}
    rows = rows_of(buckets)
    faults, _ = check_rules(rows, config.schemas, config.tables, strict=False, lists=lists)
    for path, message in faults:
        yield Fault(at + path.removeprefix("buckets"), message)
    yield from _maps_faults(declared, rows, config)


def _of_clients(bucket: DeclaredBucket, at: str) -> Iterator[Fault]:
    if "write" in bucket.model_fields_set:
        yield Fault(f"{at}.write", "nobody writes through a destination; leave it out")
    for number, item in enumerate(bucket.filters or ()):
        if isinstance(item.value, Claim):
            message = "a destination has no token; name the values themselves"
            yield Fault(f"{at}.filters[{number}].value", message)


def _maps_faults(declared: DeclaredRows, rows: SyncRules, config: GatewayConfig) -> Iterator[Fault]:
    tables = declared.tables or []
    for table, one in _sound(declared.map).items():
        if tables and table not in tables:
            yield Fault(f"map.{table}", f"the table {table} is none of tables")
        yield from map_faults(one, f"map.{table}", config.schemas.get(table))
        made = one.made()
        moved = sorted(column for column in rows.columns(table)
                       if made.target(column) != column or column in made.hash)  # fmt: skip
        if moved and config.appends(table):
            yield Fault(f"map.{table}", f"the filter looks at {moved[0]}, by which events are told "
                        "apart there as well: let it go through as it is")  # fmt: skip


# --- where they go --------------------------------------------------------------------------------


_URL_RULE: Final = (
    "must name the secret that holds the URL, without the prefix of the gateway's secrets: 1 to 64 "
    "letters, digits, _ . or -"
)
SECRET_NAME: Final = text_form(
    SECRET.fullmatch,
    _URL_RULE,
    pattern=f"^{SECRET.pattern}$",
    description="The name of the secret with the URL, without its prefix.",
)
KIND: Final = text_form(
    bool,
    f"must be one of {', '.join(KINDS)}",
    description=f"{', '.join(KINDS)}, or a type that a package of the stack adds.",
)
_NAME_THERE: Final = text_form(
    lambda name: 0 < len(name) <= SOURCE_TABLE_CHARACTERS_MAX,
    f"must be a name of 1 to {SOURCE_TABLE_CHARACTERS_MAX} characters",
)
_NAMED: Final = (
    "a destination is named by 1 to 32 lower-case letters, digits or -, a letter first; lake is "
    "there already"
)
DESTINATION_NAME: Final = text_form(
    lambda name: NAME.fullmatch(name) and name != LAKE, _NAMED, pattern=f"^{NAME.pattern}$"
)
TableNames = Annotated[
    dict[Annotated[str, TABLE_NAME], Annotated[str, _NAME_THERE]],
    Field(description="By table, its name there."),
]
Deletes = Annotated[
    str,
    one_of(("", *DELETES), "; without it each table's schema decides"),
    Field(description="Deleted rows are removed or kept; empty: as each table's schema states."),
]


class DeclaredArchive(Declaration):
    """Where history is archived, and when."""

    secret: Annotated[str, SECRET_NAME]
    after_days: Annotated[int, whole_number(1, ARCHIVE_DAYS_MAX)]
    kind: Annotated[str, one_of(ARCHIVE_KINDS)] = Field(
        BUCKET, description="What the secret's URL is of; s3."
    )

    def made(self) -> Archive:
        return Archive(self.secret, self.after_days, self.kind)


class DeclaredDestination(DeclaredRows):
    """A database besides the lake that receives a gateway's batches."""

    kind: Annotated[str, KIND]
    secret: Annotated[str, SECRET_NAME]
    buckets: Buckets = Field([])
    table_names: TableNames = Field({})
    deletes: Deletes = ""
    archive: DeclaredArchive = Field(
        default=NOT_GIVEN,
        description="Where history moves when it is so old: a bucket's folder or a database.",
    )
    lake: bool = Field(
        default=True,
        description="False: its tables go there in place of the lake. PostgreSQL, MySQL.",
    )


def place_faults(
    declared: Any,
    kind: str | None,
    tables: Collection[str],
    config: GatewayConfig,
    *,
    registered: bool,
) -> Iterator[Fault]:
    """Yield what is wrong with the names of tables and the deletions in a declared place.

    Only a table with a schema may have another name there, if that must be ``registered``.
    """
    if kind in {"s3", ICEBERG} and declared.table_names:
        yield Fault("tableNames", "a table has its own name there, in words: leave it out")
    if kind == ICEBERG and declared.deletes == "hard":
        yield Fault("deletes", "a deleted row stays in an Iceberg table, with _is_deleted and "
                    "without its values: leave it out")  # fmt: skip
    spellings = first_spellings([*config.schemas, *config.tables])
    taken: dict[str, str] = {}
    for table, name in (declared.table_names or {}).items():
        at = f"tableNames.{table}"
        if not table:
            continue
        if message := misspelled(table, spellings):
            yield Fault(at, message)
        if tables and table not in tables:
            yield Fault(at, f"the table {table} is none of tables")
        if registered and table not in config.schemas:
            yield Fault(at, f"register the schema of {table} first: only a table with a schema may "
                        "have another name there")  # fmt: skip
        if name and folded(name) in taken:
            yield Fault(at, f"the table {taken[folded(name)]} has that name there")
        taken.setdefault(folded(name or ""), table)


def _archive_faults(declared: DeclaredDestination) -> Iterator[Fault]:
    archive = declared.archive
    if "archive" not in declared.model_fields_set:
        return
    if declared.kind in UNARCHIVED_KINDS:
        yield Fault("archive", "only a destination has one, and none of "
                    f"{' or '.join(UNARCHIVED_KINDS)}: leave it out")  # fmt: skip
    if archive.secret and archive.secret == declared.secret:
        yield Fault("archive.secret", "is the database's own: an archive is elsewhere")
    if archive.kind not in {None, BUCKET} and declared.kind == "bigquery":
        yield Fault("archive.kind", f"of BigQuery must be {BUCKET}: its job reaches no database")


def _lake_faults(declared: DeclaredDestination) -> Iterator[Fault]:
    if declared.lake is not False:
        return
    if declared.kind not in INSTEAD_OF_LAKE:
        yield Fault("lake", "only a destination of a gateway can be in the lake's place, of "
                    f"{' or '.join(INSTEAD_OF_LAKE)}: leave it out")  # fmt: skip
    if declared.buckets != []:
        yield Fault("lake", "in the lake's place it has all rows: leave buckets out")


def kind_faults(
    kind: str | None, kinds: Collection[str], at: str, *, from_gateway: bool = False
) -> Iterator[Fault]:
    """Yield what is wrong with a kind of database; ``at`` is its path."""
    if kind and kind not in kinds:
        yield Fault(at, f"must be one of {', '.join(kinds)}")
    if kind == ICEBERG and from_gateway:
        yield Fault(at, "the gateway's tables are Iceberg already, in its lake; what leads from "
                    "that to other tables is a flow")  # fmt: skip


def destination_reader(
    name: str, body: object, kinds: Callable[[], Collection[str]] = lambda: KINDS
) -> Callable[[GatewayConfig], Destination]:
    return lambda config: read_destination(name, body, config, kinds())


def read_destination(
    name: str, body: object, config: GatewayConfig, kinds: Collection[str] = KINDS
) -> Destination:
    """Read a declaration, as ``POST /admin/destinations`` accepts it.

    Args:
        config: the gateway's; tables and columns that have a schema are checked against it.

    Raises:
        DestinationRefused: it is malformed, or does not fit the schemas; names every fault.
    """
    declared, faults = read(DeclaredDestination, body)
    tables = named(declared.tables)
    faults += [] if NAME.fullmatch(name) and name != LAKE else [Fault("name", _NAMED)]
    unfit = [
        *kind_faults(declared.kind, kinds, "kind", from_gateway=True),
        *rows_faults(declared, declared.buckets, "buckets", config),
        *place_faults(declared, declared.kind, tables, config, registered=True),
        *_archive_faults(declared),
        *_lake_faults(declared),
    ]
    refuse(DestinationRefused, "destination", [*faults, *apart_from(faults, unfit)])
    return Destination(
        name,
        declared.kind,
        declared.secret,
        tables,
        rows_of(declared.buckets),
        MappingProxyType(dict(declared.table_names)),
        declared.deletes,
        MappingProxyType(declared.maps()),
        archive=declared.archive.made() if "archive" in declared.model_fields_set else None,
        lake=declared.lake,
    )
