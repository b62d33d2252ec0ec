"""Rows of a changes or events table as Parquet files, from the objects of batches. Only Arrow.

No delta becomes a Python object: a million of five columns take about two seconds of a core,
reading and writing included.

Columns of canonical JSON text become typed columns, whole columns at a time. Texts that are
obviously equal to the printed form of their value, nearly all, are cast by Arrow. Every other
distinct text is examined once by `lakesync.core.column_types`, which decides. If a cast refuses
one text of a column, it decides on all of them.
Laws L2-L4, L11: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.column_types import precision_scale, value_of
from lakesync.core.delta import NULL
from lakesync.errors import ValidationFailed
from lakesync.materialise.lake_rows import kept_in_view
from lakesync.materialise.lake_schema import CARRIED, COMMIT_STAMP, ID, SYNCED_AT, TEXTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    import pyarrow as pa

    from lakesync.core.clock import Stamp
    from lakesync.materialise.lake_schema import Kind, LakeColumn
    from lakesync.materialise.work_queue import LakeStore, Link

FILE_DELTAS: Final = 500_000
"""The approximate number of deltas of one file: a reader's task reads it in a second."""
_SEPARATOR: Final = "\x1f"


def packed(links: Iterable[Link]) -> list[list[Link]]:
    """Return consecutive batches, grouped by the file into which they are written together."""
    files: list[list[Link]] = []
    room = 0
    for link in links:
        if link.batch.deltas > room or not files:
            files.append([])
            room = FILE_DELTAS
        files[-1].append(link)
        room -= link.batch.deltas
    return files


class ChangeFiles:
    """Makes files of one table."""

    def __init__(
        self,
        store: LakeStore,
        kind: Kind,
        columns: Sequence[LakeColumn],
        field_ids: Mapping[str, int],
    ) -> None:
        """Prepare.

        Args:
            field_ids: Iceberg's, by the full names of fields.
        """
        self._store = store
        self._kind = kind
        self._columns = columns
        self._schema = _schema(kind, columns, field_ids)

    def write(self, path: Path, links: Sequence[Link], applied: Stamp, at: datetime) -> int:
        """Write a Parquet file of the deltas of some batches, in their order; give their number.

        Holds one batch in memory.

        Args:
            applied: commits at or below it are left out.

        Raises:
            ValidationFailed: an object is gone, or not a batch.
        """
        import pyarrow.parquet as pq  # noqa: PLC0415 - only who writes files needs it

        count = 0
        with pq.ParquetWriter(path, self._schema, compression="zstd") as writer:
            for link in links:
                staged = self._staged(link, max(link.above, applied))
                writer.write_table(self._rows(staged, at))
                count += staged.num_rows
        return count

    def _staged(self, link: Link, above: Stamp) -> pa.Table:
        import pyarrow.compute as pc  # noqa: PLC0415 - as above

        from lakesync.adapters.lake.parquet import batch_table  # noqa: PLC0415

        stored = self._store.read(link.batch.object_key)
        if stored is None:
            raise ValidationFailed(f"the object {link.batch.object_key} is gone", field="object")
        try:
            # On this thread: several files are made at once.
            deltas = batch_table(stored.body, use_threads=False)
        except ValidationFailed as exc:
            raise ValidationFailed(
                f"the object {link.batch.object_key} cannot be read: {exc}", field="object"
            ) from exc
        if above > link.batch.after:
            deltas = deltas.filter(pc.greater(deltas[COMMIT_STAMP], above))
        return deltas

    def _rows(self, staged: pa.Table, at: datetime) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415

        texts = {column.name: _texts(staged, column.staged) for column in self._columns}
        typed = {c.name: typed_column(texts[c.name], c.type) for c in self._columns}
        kept = {name: column.kept for name, column in typed.items()}
        tail = {
            CARRIED: lambda field: _carried(texts, staged.num_rows, field),
            SYNCED_AT: lambda field: pa.array([at], field).take(_zeros(staged.num_rows)),
            TEXTS: lambda field: _kept(kept, staged.num_rows, field),
        }
        arrays = []
        for field in self._schema:
            if field.name in typed:
                arrays.append(typed[field.name].values)
            elif field.name in tail:
                arrays.append(tail[field.name](field.type))
            else:
                name = "_row_id" if field.name == ID else field.name
                arrays.append(staged[name].cast(field.type))
        return pa.Table.from_arrays(arrays, schema=self._schema)


def _texts(staged: pa.Table, name: str) -> pa.Array:
    """Return the texts of a column; all NULL if the object lacks it."""
    import pyarrow as pa  # noqa: PLC0415

    if name not in staged.column_names or not staged.num_rows:
        return pa.nulls(staged.num_rows, pa.string())
    return pa.concat_arrays(staged[name].cast(pa.string()).chunks)


def _zeros(count: int) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415

    return pa.nulls(count, pa.int32()).fill_null(0)


def _carried(texts: Mapping[str, pa.Array], count: int, kind: pa.DataType) -> pa.Array:
    """Return for each row the names of the columns that it carries.

    Rows carry few distinct sets of columns: each is made into a list once.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    some = {name: column for name, column in texts.items() if column.null_count < count}
    if not some:
        return pa.array([[]] * count, kind)
    names = [pc.if_else(pc.is_valid(column), name, "") for name, column in some.items()]
    sets = pc.binary_join_element_wise(*names, _SEPARATOR).dictionary_encode()
    lists = [
        [name for name in one.split(_SEPARATOR) if name] for one in sets.dictionary.to_pylist()
    ]
    return pa.array(lists, kind).take(sets.indices)


def _kept(kept: Mapping[str, pa.Array], count: int, kind: pa.DataType) -> pa.Array:
    """Return for each row a map of its kept texts; NULL if there are none, as in most rows."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    rows: list[Any] = [None] * count
    for name, column in kept.items():
        if column.null_count < len(column):
            places = pc.indices_nonzero(pc.is_valid(column))
            for place, text in zip(places.to_pylist(), column.drop_null().to_pylist(), strict=True):
                rows[place] = [*(rows[place] or ()), (name, text)]
    return pa.array(rows, kind)


def _schema(kind: Kind, columns: Sequence[LakeColumn], field_ids: Mapping[str, int]) -> pa.Schema:
    """Return the schema of files, with Iceberg's ids: readers match columns by these alone."""
    import pyarrow as pa  # noqa: PLC0415

    def field(name: str, of: pa.DataType, full: str = "", *, nullable: bool = True) -> pa.Field:
        said = {b"PARQUET:field_id": str(field_ids[full or name]).encode()}
        return pa.field(name, of, nullable, said)

    def of(name: str, declared: str) -> pa.DataType:
        if declared == "ARRAY<STRING>":
            return pa.list_(field("element", pa.string(), f"{name}.element"))
        if declared == "MAP<STRING, STRING>":
            return pa.map_(
                field("key", pa.string(), f"{name}.key", nullable=False),
                field("value", pa.string(), f"{name}.value"),
            )
        return {
            "BIGINT": pa.int64(), "INT": pa.int32(), "STRING": pa.string(),
            "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        }[declared]  # fmt: skip

    return pa.schema(
        [
            *(field(name, of(name, declared)) for name, declared in kind.head.items()),
            *(field(column.name, arrow_type(column.type)) for column in columns),
            *(field(name, of(name, declared)) for name, declared in kind.tail.items()),
        ]
    )


# --- typed columns --------------------------------------------------------------------------------


# By type, the texts that are the only text of their value, as canonical JSON writes them.
_DAY: Final = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
_PART: Final = "([0-9]{2}[1-9]|[0-9][1-9]0|[1-9]00)"
"""Three digits that are not all zeros."""
_WHOLE: Final = "(0|-?[1-9][0-9]{0,14})"
_PLAIN: Final[Mapping[str, str]] = {
    "boolean": "^(true|false)$",
    "integer": f"^{_WHOLE}$",
    # 15 characters have no more digits than a double carries; a small fraction has an exponent.
    "number": f"^({_WHOLE}|-?(0|[1-9][0-9]{{0,6}})[.][0-9]{{0,5}}[1-9])$",
    "date": f'^"{_DAY}"$',
    "timestamp": f'^"{_DAY}T[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}([.]([0-9]{{3}})?{_PART})?Z"$',
}


class TypedColumn(NamedTuple):
    """The result for a column of texts."""

    values: pa.Array
    kept: pa.Array
    """The texts that the values do not reproduce; NULL where they do, and for a JSON null."""


def arrow_type(type_name: str) -> pa.DataType:
    import pyarrow as pa  # noqa: PLC0415 - only who types columns needs it

    decimal = precision_scale(type_name)
    if decimal:
        return pa.decimal128(*decimal)
    types: Mapping[str, pa.DataType] = {
        "number": pa.float64(),
        "boolean": pa.bool_(),
        "integer": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "date": pa.date32(),
        "bytes": pa.binary(),
    }
    return types.get(type_name, pa.string())


def typed_column(texts: pa.Array, type_name: str) -> TypedColumn:
    """Return the typed values of a column of canonical JSON texts; NULL for what is unfit.

    Args:
        texts: NULL where a row does not carry the column.
        type_name: one of `lakesync.core.column_types.TYPES`, or ``decimal(p,s)``.
    """
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyarrow.compute as pc  # noqa: PLC0415

    kind = arrow_type(type_name)
    none = pa.scalar(None, pa.string())
    if texts.null_count == len(texts):
        return TypedColumn(pa.nulls(len(texts), kind), texts)
    plain = _plain(texts, type_name)
    try:
        values = _cast(pc.if_else(plain, texts, none), type_name, kind)
    except pa.ArrowInvalid:  # one of them is no valid value, such as 30 February
        plain, values = pa.scalar(False), pa.nulls(len(texts), kind)
    rest = pc.if_else(plain, none, texts)
    if rest.null_count == len(texts):
        return TypedColumn(values, rest)
    looked_at = rest.dictionary_encode()
    by_itself = _each(looked_at.dictionary, type_name, kind)
    others, kept = (column.take(looked_at.indices) for column in by_itself)
    return TypedColumn(pc.coalesce(values, others), kept)


def _plain(texts: pa.Array, type_name: str) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if type_name == "json":
        return pc.not_equal(texts, "null")
    if type_name == "string":
        # Control characters, and quotes inside, are escaped by a backslash.
        escapes = pc.match_substring(texts, "\\")
        return pc.and_not(pc.starts_with(texts, '"'), escapes)
    pattern = _PLAIN.get(type_name) or _plain_decimal(type_name)
    if pattern is None:
        return pa.scalar(False)
    return pc.match_substring_regex(texts, pattern)


def _plain_decimal(type_name: str) -> str | None:
    """Return the pattern of a decimal's plain texts: numbers that a double carries exactly."""
    precision, scale = precision_scale(type_name) or (0, 0)
    digits = min(precision, 15) - scale
    if digits < 1:
        return None
    whole = f"(0|-?[1-9][0-9]{{0,{digits - 1}}})"
    if not scale:
        return f"^{whole}$"
    fraction = f"-?(0|[1-9][0-9]{{0,{digits - 1}}})[.][0-9]{{0,{min(scale, 6) - 1}}}[1-9]"
    return f"^({whole}|{fraction})$"


def _cast(texts: pa.Array, type_name: str, kind: pa.DataType) -> pa.Array:
    """Return the values of plain texts; ``ArrowInvalid`` if one has none."""
    import pyarrow.compute as pc  # noqa: PLC0415

    if type_name in {"string", "date", "timestamp"}:
        texts = pc.utf8_slice_codeunits(texts, 1, -1)
    return texts if texts.type == kind else texts.cast(kind)


def _each(texts: pa.Array, type_name: str, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Return the value of each text, and the text itself where the value does not reproduce it."""
    import pyarrow as pa  # noqa: PLC0415

    raw = [text.encode() for text in texts.to_pylist()]
    kept: Callable[[bytes], Any] = lambda text: (  # noqa: E731
        None if text == NULL else kept_in_view(type_name, text)
    )
    return (
        pa.array([value_of(type_name, text) for text in raw], kind),
        pa.array([kept(text) for text in raw], pa.string()),
    )
