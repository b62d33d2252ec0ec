"""Spark and the gateway agree on every text: of which types it is, and which value it has there."""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING

import pytest

from lakesync.core.column_types import fits, typed_text_of
from lakesync.core.delta import NULL, canonical
from lakesync.materialise.lake_schema import LakeColumn
from lakesync_spark.iceberg.json_text import kept_text as kept_sql
from lakesync_spark.iceberg.json_text import kept_texts, typed
from lakesync_spark.iceberg.typed_text import text_of as text_sql
from tests.glue.support.texts import kept_text, typed_value
from tests.support.hostile_texts import KINDS, hostile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


def given_back(columns: Sequence[LakeColumn]) -> list[str]:
    """Return the SQL of the text that the state table holds, by column."""
    values = {c.name: f"`{c.name}`" for c in columns}
    backs = {
        c.name: f"coalesce({kept_sql(c.type, values[c.name], 'text')},"
        f" {text_sql(values[c.name], c.type)})"
        for c in columns
    }
    return [f"{back} AS back_{name}" for name, back in backs.items()]


TEXTS = hostile()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def comparable(value: object) -> object:
    """Return a value as a query below gives it."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)
    return value.isoformat() if isinstance(value, date) else value


@pytest.mark.spark
@pytest.mark.usefixtures("compiled")
@pytest.mark.law("S1", "L2", "L3")
def test_spark_and_the_gateway_agree_on_hostile_texts(spark: SparkSession) -> None:
    columns = [LakeColumn(f"c{place}", kind, kind) for place, kind in enumerate(KINDS)]
    collected = {"timestamp": "unix_micros({})", "date": "CAST({} AS STRING)"}
    values = {column.name: typed("text", column.type) for column in columns}
    shown = [collected.get(c.type, "{}").format(f"`{c.name}`") + f" AS `{c.name}`" for c in columns]
    named = {column.name: f"`{column.name}`" for column in columns}
    kept = kept_texts(columns, named, dict.fromkeys(named, "text"))
    rows = (
        spark.createDataFrame([(text.decode(),) for text in TEXTS], "text STRING")
        .selectExpr("text", *(f"{value} AS `{name}`" for name, value in values.items()))
        .selectExpr("text", f"{kept} AS kept", *shown, *given_back(columns))
        .collect()
    )

    assert len(rows) == len(TEXTS) > 600
    wrong: list[tuple[object, ...]] = []
    for row in rows:
        text = row["text"].encode()
        for column in columns:
            read = row[column.name]
            value = bytes(read) if isinstance(read, bytearray) else read
            got = (value, (row["kept"] or {}).get(column.name))
            expected = (comparable(typed_value(column.type, text)), kept_text(column.type, text))
            if row[f"back_{column.name}"] != row["text"]:
                wrong.append((column.type, text, "is given back as", row[f"back_{column.name}"]))
            if got != expected or (value is None) == (text != NULL and fits(column.type, text)):
                wrong.append((column.type, text, got, expected))
    assert wrong == []


def test_typed_value_and_its_kept_text_restore_the_original_text() -> None:
    for kind, text in product(KINDS, TEXTS):
        value, kept = typed_value(kind, text), kept_text(kind, text)
        if kept is None and text != NULL and kind != "json":
            assert typed_text_of(kind, value) == text
        if isinstance(value, Decimal):
            assert value == Decimal(text.strip(b'"').decode())
    assert [kind for kind in KINDS if not any(map(fits, [kind] * len(TEXTS), TEXTS))] == ["null"]
    assert kept_text("bytes", canonical(base64.b64encode(b"x").decode())) is None
