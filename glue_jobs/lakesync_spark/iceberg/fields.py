"""Reads the fields of an Iceberg schema by one call to Java, instead of several for each field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from lakesync_spark.common.java import java_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession


class Field(NamedTuple):
    number: int
    """Iceberg's id."""
    name: str
    comment: str
    type: Any
    """In the JSON of Iceberg's specification."""


def fields_of(spark: SparkSession, schema: Any) -> tuple[Field, ...]:
    parser = java_class(spark, "org.apache.iceberg.SchemaParser")
    document = json.loads(parser.toJson(schema))
    return tuple(
        Field(field["id"], field["name"], field.get("doc", ""), field["type"])
        for field in document["fields"]
    )


def ids_by_name(fields: Iterable[Field]) -> dict[str, int]:
    """Return the ids of columns, and of parts of lists and maps, by full name: ``_texts.key``."""
    return dict(one for field in fields for one in _within(field.name, field.number, field.type))


def _within(name: str, number: int, kind: Any) -> Iterator[tuple[str, int]]:
    yield name, number
    if isinstance(kind, str):
        return
    for part in ("element", "key", "value"):
        if part in kind:
            yield from _within(f"{name}.{part}", kind[f"{part}-id"], kind[part])
