"""Typed columns: a view of the canonical text, from which nothing is lost."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.column_types import fits
from lakesync.core.delta import Op, canonical, make_delta
from lakesync.core.schema import Column, TableSchema
from lakesync.errors import SchemaMismatch
from lakesync.materialise.lake_schema import LakeColumn, described, evolve
from lakesync_spark.iceberg import apply
from tests.glue.support.read_back import read_back
from tests.glue.support.texts import kept_text
from tests.support.builders import delete, insert, update

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.glue.support.lake import Lake


def spark_test(test: Callable[..., None]) -> Any:
    """Mark a test of Spark, which compiles its plans here as it does outside tests."""
    return pytest.mark.spark(pytest.mark.usefixtures("compiled")(test))


DUE = datetime(2024, 2, 29, 13, 5, 9)  # noqa: DTZ001 - Spark hands out UTC without saying so

ESCAPED = "\x00\x1f\b\f\n\r\t\\" + '"/\x7f'
FITTING: dict[str, list[tuple[object, object]]] = {
    "string": [
        ("", ""),
        ("plain", "plain"),
        ("é\u2028\U0001f600", "é\u2028\U0001f600"),
        (ESCAPED, ESCAPED),
        ("\\u0041", "\\u0041"),
        ("null", "null"),
    ],
    "number": [
        (0, 0.0), (-0.0, 0.0), (1.5, 1.5), (2**53 - 1, 2.0**53 - 1), (1e21, 1e21),
        (5e-324, 5e-324), (1.7976931348623157e308, 1.7976931348623157e308), (-2.5e-7, -2.5e-7),
    ],
    "boolean": [(True, True), (False, False)],
    "json": [({"k": [1, None]}, '{"k":[1,null]}'), ("x", '"x"'), (1, "1")],
    "integer": [(7, 7), (-7, -7), ("9223372036854775807", 2**63 - 1), ("7", 7), ("0", 0)],
    "decimal(5,2)": [
        (1.25, Decimal("1.25")), ("-999.99", Decimal("-999.99")), ("0.10000", Decimal("0.10")),
        (3, Decimal("3.00")),
    ],
    "timestamp": [
        ("2024-02-29T13:05:09Z", DUE), ("2024-02-29 13:05:09", DUE),
        ("2024-02-29T14:05:09+01:00", DUE), ("2024-02-29T13:05", DUE.replace(second=0)),
        ("2024-02-29T13:05:09.123456Z", DUE.replace(microsecond=123456)),
        ("2024-02-29T15:05:09.123456789+02:00", DUE.replace(microsecond=123456)),
    ],
    "date": [("2024-02-29", date(2024, 2, 29))],
    "bytes": [("", b""), (base64.b64encode(bytes(range(256))).decode(), bytes(range(256)))],
}  # fmt: skip
UNFITTING: dict[str, list[object]] = {
    "string": [1, True, ["x"]],
    "number": ["1", " 12", "x", True, [1]],
    "boolean": ["true", 1, 0],
    "integer": [
        1.5, "x", "9223372036854775808", True, " 12", "12 ", "+12", "007", "-07", "00", "-0",
    ],
    "decimal(5,2)": [1.234, "1000", "x", 1e21, True, " 1", "+1", "1."],
    "timestamp": ["2024", "2024-02-30T00:00:00Z", "0000-01-01T00:00Z", "soon", 1],
    "date": ["2024-02-30", "2024-2-1", "2024-02-29T00:00:00Z", 20240229, "0000-01-01"],
    "bytes": ["!", "A", "AAE", "AA EC", 1],
    "null": [0, ""],
}  # fmt: skip
TYPES = sorted({*FITTING, *UNFITTING})
NAMES = {kind: f"c{place}" for place, kind in enumerate(TYPES)}
SCHEMA = TableSchema("todos", tuple(Column(NAMES[kind], kind) for kind in TYPES))


def rows_of(kind: str, values: list[object]) -> dict[str, dict[str, object]]:
    """Return one row for each value of a type, by row id."""
    return {f"{kind}/{canonical(value).decode()}": {NAMES[kind]: value} for value in values}


GOOD = {
    row_id: columns
    for kind, pairs in FITTING.items()
    for row_id, columns in rows_of(kind, [value for value, _ in pairs]).items()
}
EXPECTED = {
    f"{kind}/{canonical(value).decode()}": expected
    for kind, p in FITTING.items()
    for value, expected in p
}
BAD = {
    row_id: columns
    for kind, values in UNFITTING.items()
    for row_id, columns in rows_of(kind, values).items()
}


def test_type_samples_match_what_the_gateway_accepts_and_refuses() -> None:
    assert [
        v for kind, pairs in FITTING.items() for v, _ in pairs if not fits(kind, canonical(v))
    ] == []
    assert [
        v for kind, values in UNFITTING.items() for v in values if fits(kind, canonical(v))
    ] == []


def check(lake: Lake, *, but: str = "no type") -> None:
    """Each value is typed, and its text kept if it says more, in the rows and in the changes."""
    rows, states = lake.rows(), lake.states()
    changes = {change["_id"]: change.asDict(recursive=True) for change in lake.changes()}
    for row_id, columns in {**GOOD, **BAD}.items():
        if row_id.startswith(but):
            continue
        name, value = next(iter(columns.items()))
        text = canonical(value).decode()
        kept = kept_text(row_id.partition("/")[0], canonical(value))
        assert kept in ({text, None} if row_id in GOOD else {text})
        for row in (rows[row_id], changes[row_id]):
            assert plain(row[name]) == EXPECTED.get(row_id), row_id
        assert changes[row_id]["_texts"] == ({name: kept} if kept else None), row_id
        assert json.loads(rows[row_id]["_texts"] or "{}") == ({name: kept} if kept else {}), row_id
        assert states[row_id].columns[name][2] == canonical(value), row_id
        assert changes[row_id]["_columns"] == [name]
    assert [one.delta for one in read_back(lake)][: len(deltas())] == deltas()


def plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def deltas() -> list[Any]:
    return [
        make_delta(Op.INSERT, "todos", row_id, columns, client_id="c", hlc=place + 1)
        for place, (row_id, columns) in enumerate({**GOOD, **BAD}.items())
    ]


@spark_test
@pytest.mark.law("L2", "L3", "H1")
def test_typed_columns_agree_with_their_canonical_texts(lake: Lake) -> None:
    lake.put(deltas(), schema=SCHEMA)
    lake.run()

    check(lake)


@spark_test
@pytest.mark.law("L2", "L10")
def test_schema_registered_after_the_data_gives_the_same_rows(lake: Lake) -> None:
    lake.put(deltas())
    lake.run()
    untyped = lake.read(lake.name.rows).select("c0").schema[0].dataType.simpleString()
    first = lake.spark.sql(f"SELECT max(snapshot_id) FROM {lake.name.rows}.snapshots").first()  # noqa: S608
    lake.put([insert("last", at=999)], schema=SCHEMA)
    lake.run()

    assert untyped == "string"
    check(lake, but="null")  # text stays text: there is nothing to gain
    assert {mark.commit for mark in lake.marks().values()} == {len(GOOD) + len(BAD) + 1}
    assert first is not None
    old = lake.spark.sql(f"SELECT * FROM {lake.name.rows} VERSION AS OF {first[0]}")  # noqa: S608
    assert old.schema["c0"].dataType.simpleString() == "string", "history stays"


@spark_test
@pytest.mark.law("L2")
def test_json_null_and_absent_are_distinguished_by_the_text(lake: Lake) -> None:
    lake.put(
        [insert("r1", at=5, n=None)],
        schema=TableSchema("todos", (Column("n", "number"), Column("m", "number"))),
    )
    lake.run()
    row = lake.rows()["r1"]

    assert (row["n"], row["m"], row["_texts"]) == (None, None, '{"n":"null"}')
    assert (row["_hlc"], row["_client_id"], row["_stamps"]) == (5, "c1", None)
    assert lake.states()["r1"].columns == {"n": (5, "c1", b"null")}
    assert lake.changes()[0]["_columns"] == ["n"]


@spark_test
@pytest.mark.law("L10")
def test_columns_are_added_and_decimals_widen_without_touching_rows(lake: Lake) -> None:
    lake.put(
        [insert("r1", at=5, d=1.5)], schema=TableSchema("todos", (Column("d", "decimal(5,2)"),))
    )
    lake.run()
    wider = (Column("d", "decimal(9,2)"), Column("Extra", "string"), Column("k", "date"))
    lake.put(
        [update("r1", at=6, Extra="x", k="2024-01-01")],
        schema=TableSchema("todos", wider, version=2, partition=("k",)),
    )
    lake.run()

    assert lake.visible() == {"r1": {"d": Decimal("1.50"), "extra": "x", "k": date(2024, 1, 1)}}
    kept = lake.read(f"{lake.name.rows}.snapshots").count()
    assert kept == 2, "no conversion was needed"
    assert lake.read(lake.name.rows).schema["d"].dataType.simpleString() == "decimal(9,2)"


PARTITION = {
    "string": ("a", "b"),
    "number": (1.5, -2),
    "boolean": (True, False),
    "integer": (7, "9223372036854775807"),
    "decimal(5,2)": (1.25, "-999.99"),
    "timestamp": ("2024-02-29T13:05:09Z", "2024-03-01T00:00:00Z"),
    "date": ("2024-02-29", "2024-03-01"),
}
"""Two values of each type that may partition a table."""


def partition_of(lake: Lake) -> list[str]:
    described = lake.spark.sql(f"DESCRIBE TABLE EXTENDED {lake.name.rows}").collect()
    fields = {row["col_name"]: row["data_type"] for row in described}
    return [fields[f"Part {place}"] for place in range(9) if f"Part {place}" in fields]


@spark_test
@pytest.mark.law("S3", "L10")
def test_a_table_is_partitioned_by_its_schema_and_rows_move_between_partitions(
    lake: Lake,
) -> None:
    columns = [Column(f"c{place}", kind) for place, kind in enumerate(PARTITION)]
    first = tuple(columns[:-1])
    names = [column.name for column in columns]

    def row(*which: int) -> dict[str, Any]:
        return {n: v[w] for n, v, w in zip(names, PARTITION.values(), which, strict=False)}

    schema = TableSchema("todos", first, partition=tuple(names[:-1]))
    lake.put(
        [insert("r1", at=1, **row(0, 0, 0, 0, 0, 0)), insert("r2", at=2, **row(1, 1, 1, 1, 1, 1)),
         insert("r3", at=3)],
        schema=schema,
    )  # fmt: skip
    lake.run()
    by = ["c0", "c1", "c2", "c3", "c4", "days(c5)"]
    assert partition_of(lake) == by

    columns[4] = Column("c4", "decimal(9,2)")
    wider = TableSchema("todos", tuple(columns), version=2, partition=tuple(names))
    lake.put(
        [update("r1", at=4, **row(1, 1, 1, 1, 1, 1, 1)),
         update("r3", at=5, c0="b", c6="2024-02-29"), delete("r2", at=6)],
        schema=wider,
    )  # fmt: skip
    lake.run()

    assert partition_of(lake) == [*by, "c6"]
    rows = lake.visible()
    assert rows.keys() == {"r1", "r3"}
    assert [rows["r1"][name] for name in names] == [
        "b", -2.0, False, 2**63 - 1, Decimal("-999.99"), datetime(2024, 3, 1), date(2024, 3, 1),  # noqa: DTZ001
    ]  # fmt: skip
    assert (rows["r3"]["c0"], rows["r3"]["c6"]) == ("b", date(2024, 2, 29))
    files = lake.read(f"{lake.name.rows}.partitions").collect()
    assert {f["partition"]["c0"] for f in files if f["record_count"]} >= {"b"}


@spark_test
@pytest.mark.law("L2", "L3", "L4")
def test_arrow_and_spark_write_the_same_changes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Arrow, and by Spark, as in tables that somebody partitioned; in turns, and overlapping."""
    values: list[dict[str, Any]] = [*GOOD.values(), *BAD.values()]
    samples = [insert(f"{n}", at=n, **row) for n, row in enumerate(values, 1)]
    deltas = [*samples, delete("1", at=2_000), update("2", at=2_001, c1=None, c2=True)]
    written = {}
    for turn, arrow in enumerate(((True, False), (False, True))):
        each = replace(lake, gateway=f"{lake.gateway}-{turn}", batches=[])
        for take, start in zip(arrow, (0, 30), strict=True):
            monkeypatch.setattr(apply, "may_register", lambda _, take=take: take)
            each.put(deltas[start : start + 40], after=start, schema=SCHEMA)
            each.put(deltas[start + 20 :], after=start + 20, schema=SCHEMA)
            each.run()
        written[arrow] = [
            {**row.asDict(recursive=True), "_synced_at": None} for row in each.changes()
        ]
    first, second = written.values()

    assert [row["_commit"] for row in first] == list(range(1, len(deltas) + 1))
    # Of numbers of 17 digits Java may print others: Arrow's writer keeps the texts of all of them.
    assert [row for row in first if row not in second and not (row["_texts"] or {}).get("c7")] == []


@spark_test
@pytest.mark.law("L11")
@pytest.mark.parametrize("partition", [("day",), ()])
def test_an_append_table_has_one_row_for_each_delta(lake: Lake, partition: tuple[str, ...]) -> None:
    schema = TableSchema(
        "todos",
        (Column("n", "integer"), Column("day", "timestamp")),
        append=True,
        partition=partition,
    )
    lake.put([insert("e1", at=5, n=1), insert("e2", at=6, n=2)], schema=schema)
    lake.run()
    lake.put([insert("e3", at=7, n="x")], schema=schema)
    lake.claim(lake.batches[0], schema)
    lake.run()
    rows = lake.read(lake.name.rows).orderBy("_commit").collect()

    assert [(row["_id"], row["n"], row["_commit"]) for row in rows] == [
        ("e1", 1, 1), ("e2", 2, 2), ("e3", None, 3),
    ]  # fmt: skip
    assert rows[2]["_texts"] == {"n": '"x"'}
    assert "changes" not in lake.marks()


def test_type_change_that_the_registry_forbids_is_refused() -> None:
    columns = [LakeColumn("n", "number", "n")]

    with pytest.raises(SchemaMismatch, match="cannot become date"):
        evolve(columns, [LakeColumn("n", "date", "n")])


def test_older_schema_removes_and_narrows_nothing() -> None:
    columns = [LakeColumn("n", "decimal(9,2)", "n"), LakeColumn("s", "string", "s")]
    older = [LakeColumn("n", "decimal(5,2)", "n"), LakeColumn("s", "json", "s")]

    assert evolve(columns, older)[:3] == ((), (), ())


def test_column_is_described_by_its_record_or_by_its_unedited_comment() -> None:
    column = LakeColumn("due", "decimal(5,2)", "Due")

    assert described("due", ["decimal(5,2)", "Due"], "when it is due") == column
    assert described("due", None, column.comment) == column
    said = f"Due, by contract (see §2) ({column.comment})"
    assert described("due", None, said) == column
    edited = ("Due", "Due (date)", "When it is due (date of delivery)", "money Due", "date of due")
    for comment in (None, "", *edited):
        assert described("due", None, comment) is None
    assert described("_new_due", None, column.comment) is None
