"""Writes rows atomically to a file, in the format that its name states."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.faults import UsageFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa


def check_format(path: Path) -> None:
    """Check that rows can be written to a file, before they are read.

    Raises:
        UsageFault: the name states no known format, or the folder does not exist.
    """
    if path.suffix not in _WRITERS:
        known = ", ".join(_WRITERS)
        raise UsageFault(f"{path}: the name must end in one of {known}, which is the format")
    if not path.parent.is_dir():
        raise UsageFault(f"{path.parent} is not a folder: create it first")


def write_rows(rows: pa.RecordBatchReader, path: Path) -> None:
    """Write rows as they are read; the former file is replaced once all of them are written."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        _WRITERS[path.suffix](rows, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _csv(rows: pa.RecordBatchReader, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows.schema.names)
        for row in _dicts(rows):
            writer.writerow("" if value is None else _cell(value) for value in row.values())


def _cell(value: object) -> object:
    nested = isinstance(value, dict | list | tuple)
    return json.dumps(value, ensure_ascii=False, default=str) if nested else value


def _json(rows: pa.RecordBatchReader, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in _dicts(rows):
            file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")


def _parquet(rows: pa.RecordBatchReader, path: Path) -> None:
    from pyarrow import parquet

    with parquet.ParquetWriter(path, rows.schema, compression="zstd") as writer:
        for batch in rows:
            writer.write_batch(batch)


def _arrow(rows: pa.RecordBatchReader, path: Path) -> None:
    from pyarrow import ipc

    with ipc.new_file(str(path), rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)


def _dicts(rows: pa.RecordBatchReader) -> Iterator[Mapping[str, Any]]:
    for batch in rows:
        columns = [column.to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True):
            # Not as dictionaries of Arrow's: two columns may have one name.
            yield dict(zip(rows.schema.names, row, strict=True))


_WRITERS: Final[Mapping[str, Callable[[pa.RecordBatchReader, Path], None]]] = {
    ".csv": _csv,
    ".json": _json,
    ".parquet": _parquet,
    ".arrow": _arrow,
}
