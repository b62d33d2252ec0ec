"""Files of the changes table that Arrow makes say what is said of each delta by itself."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.core.column_types import TYPES, value_of
from lakesync.core.config import JSON, PARQUET
from lakesync.core.deliveries import parse_claim
from lakesync.core.delta import NULL, canonical
from lakesync.errors import ValidationFailed
from lakesync.maintenance.flush import batches
from lakesync.materialise import change_files
from lakesync.materialise.change_files import ChangeFiles, arrow_type, packed, typed_column
from lakesync.materialise.lake_rows import change_row, kept_in_view, read_deltas
from lakesync.materialise.lake_schema import CHANGES_TABLE, EVENTS_TABLE, LakeColumn
from lakesync.materialise.work_queue import Link, next_chain
from lakesync.ports import BatchRow
from lakesync.wire.batch_json import encode_batch
from tests.support.hostile_texts import KINDS, hostile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lakesync.core.deliveries import Batch
    from lakesync.materialise.lake_schema import Kind

AT = datetime(2026, 11, 24, tzinfo=UTC)
TEXTS = hostile()
# What apps write: of each type many that are plain, and some that are not.
USUAL = [
    *(canonical(value) for value in (None, True, False, "", "a", "ü", "null", {"a": 1})),
    *(canonical(value) for value in ('a"b', "a\\b")),
    *(canonical(number / 8) for number in range(-40, 40)),
    *(canonical(round(number * 0.37, 2)) for number in range(-40, 40)),
    *(canonical(sign * 10**digits) for digits in range(17) for sign in (1, -1)),
    *(canonical(10.0**-digits) for digits in range(1, 9)),
    *(canonical(f"2024-{month:02}-{day:02}") for month in (2, 12) for day in range(27, 32)),
    *(canonical(f"2024-12-01T23:59:59{part}Z") for part in ("", ".5", ".120", ".000", ".000001")),
    *(canonical(f"2024-12-01T23:59:59.{part}Z") for part in ("123450", "123000", "120000", "001")),
]  # fmt: skip
COLUMNS = [LakeColumn(f"c{place}", kind, f"c{place}") for place, kind in enumerate(KINDS)]


def one_by_one(kind: str, texts: Sequence[bytes]) -> tuple[list[Any], list[str | None]]:
    values = pa.array([value_of(kind, text) for text in texts], arrow_type(kind))
    kept = [None if text == NULL else kept_in_view(kind, text) for text in texts]
    return values.to_pylist(), kept


@pytest.mark.law("L2", "L3")
@pytest.mark.parametrize("kind", KINDS)
def test_typed_column_equals_the_values_converted_one_by_one(kind: str) -> None:
    alone = [[text] for text in (*TEXTS, *USUAL)]
    for texts in (*alone, TEXTS, USUAL, []):
        values, kept = typed_column(pa.array([t.decode() for t in texts], pa.string()), kind)

        assert values.type == arrow_type(kind)
        assert (values.to_pylist(), kept.to_pylist()) == one_by_one(kind, texts)


@pytest.mark.law("L2", "L3")
def test_plain_texts_are_converted_as_whole_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the speed is gone, and nothing else says so."""
    plain = {
        "string": b'"2024"', "number": b"-12.25", "boolean": b"true", "json": b'{"a":1}',
        "integer": b"-12", "date": b'"2024-02-29"', "timestamp": b'"2024-02-29T13:05:09.120Z"',
        "decimal(10,2)": b"1234567.25", "decimal(19,0)": b"-123456789012345",
    }  # fmt: skip
    monkeypatch.setattr("lakesync.materialise.change_files.value_of", None)
    for kind, text in plain.items():
        values, kept = typed_column(pa.array([text.decode(), None]), kind)
        assert (values.null_count, kept.null_count) == (1, 2), kind


class Store(NamedTuple):
    objects: dict[str, bytes]

    def read(self, key: str) -> Any:
        body = self.objects.get(key)
        return None if body is None else Stored(body, "")


class Stored(NamedTuple):
    body: bytes
    etag: str


def rows(first: int, last: int) -> list[BatchRow]:
    """Deltas of some commits, two of each; some columns of each, or none."""
    made = []
    for commit in range(first, last + 1):
        chance = random.Random(commit)
        for ordinal in range(2):
            names = chance.sample(
                [c.written for c in COLUMNS], chance.choice([0, 1, 1, 3, len(COLUMNS)])
            )
            columns = tuple((name, chance.choice(USUAL)) for name in sorted(names))
            op = "UPDATE" if columns else "DELETE"
            row = BatchRow(commit, ordinal, op, f"r{commit % 7}", "c", commit, f"{commit}", columns)
            made.append(row)
    return made


def staged(store: Store, after: int, last: int, form: str = PARQUET) -> Batch:
    """Write a batch as the flush does, and give its claim as it is read."""
    [batch] = batches("gw", "todos", rows(after + 1, last), after, form)
    if form == JSON:
        body = encode_batch("gw", "todos", after, last, batch.rows)
    else:
        body = ParquetEncoder().encode(batch.rows, batch.columns)
    store.objects[batch.object_key] = body
    return parse_claim(batch.claim_key, batch.claim(None, len(body)).encode())


def ids(kind: Kind) -> dict[str, int]:
    nested = ("_columns.element", "_texts.key", "_texts.value")
    names = [*kind.head, *(column.name for column in COLUMNS), *kind.tail, *nested]
    return {name: number for number, name in enumerate(names, 1)}


@pytest.mark.law("L2", "L3", "L4", "L11")
@pytest.mark.parametrize("kind", [CHANGES_TABLE, EVENTS_TABLE])
@pytest.mark.parametrize(("applied", "form"), [(0, PARQUET), (12, PARQUET), (12, JSON)])
def test_change_file_of_overlapping_batches_has_each_delta_once(
    tmp_path: Path, kind: Kind, applied: int, form: str
) -> None:
    store: Any = Store({})
    spans = ((0, 30), (0, 10, JSON), (20, 60, form))
    chain = next_chain([staged(store, *span) for span in spans], 0)
    path = tmp_path / "file.parquet"
    count = ChangeFiles(store, kind, COLUMNS, ids(kind)).write(path, chain.links, applied, AT)

    deltas = [one for one in read_deltas(store, chain.links, COLUMNS) if one.commit > applied]
    table = pq.read_table(path)
    expected = [change_row(one, kind, COLUMNS, AT) for one in deltas]
    assert table.to_pylist() == pa.Table.from_pylist(expected, schema=table.schema).to_pylist()
    assert count == table.num_rows == len(deltas) == 2 * (60 - applied)


@pytest.mark.law("L9")
@pytest.mark.parametrize("form", [PARQUET, JSON])
def test_missing_or_damaged_object_of_a_batch_is_reported(tmp_path: Path, form: str) -> None:
    store: Any = Store({})
    batch = staged(store, 0, 2, form)
    files = ChangeFiles(store, CHANGES_TABLE, COLUMNS, ids(CHANGES_TABLE))
    whole = store.objects.pop(batch.object_key)
    for body, said in ((None, "is gone"), (b"not parquet", "cannot be read"), (whole[:-9], "read")):
        if body is not None:
            store.objects[batch.object_key] = body
        with pytest.raises(ValidationFailed, match=f"{batch.object_key}.* {said}"):
            files.write(tmp_path / "f", [Link(batch, 0)], 0, AT)


def test_change_file_of_a_table_without_columns_has_rows(tmp_path: Path) -> None:
    store: Any = Store({})
    link = Link(staged(store, 0, 2), 0)
    path = tmp_path / "f"
    assert ChangeFiles(store, CHANGES_TABLE, (), ids(CHANGES_TABLE)).write(path, [link], 0, AT) == 4
    assert pq.read_table(path)["_columns"].to_pylist() == [[]] * 4


def test_small_batches_are_packed_into_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_files, "FILE_DELTAS", 10)
    batch = staged(Store({}), 0, 1)
    links = [Link(replace(batch, deltas=deltas), 0) for deltas in (4, 6, 1, 30, 9, 2)]
    assert [[one.batch.deltas for one in file] for file in packed(links)] == [
        [4, 6], [1], [30], [9], [2],
    ]  # fmt: skip
    assert packed([]) == []
    assert set(TYPES) - {"decimal"} <= set(KINDS)


@pytest.mark.law("L4")
def test_already_applied_batch_adds_no_row(tmp_path: Path) -> None:
    store: Any = Store({})
    link = Link(staged(store, 0, 2), 0)
    files = ChangeFiles(store, CHANGES_TABLE, COLUMNS, ids(CHANGES_TABLE))
    assert files.write(tmp_path / "f", [link], 2, AT) == 0
