"""A stack's tables in a catalogue that is not Glue's go with it, and nobody else's do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import boto3
import pytest
from moto import mock_aws

from lakesync.cli import removal
from lakesync.cli.removal import LakeTables
from lakesync.materialise.lake_catalogue import LakeCatalogue
from lakesync.materialise.lake_schema import STACK

ID = "arn:aws:cloudformation:us-east-1:123456789012:stack/trial/1a2b3c4d"
OWN = {STACK: ID}
BUCKET = "warehouse"


@dataclass(frozen=True)
class Table:
    """A table of the catalogue."""

    properties: dict[str, str]
    place: str

    def location(self) -> str:
        return f"s3://{BUCKET}/{self.place}"


@dataclass
class Catalogue:
    """A REST catalogue, as PyIceberg shows it."""

    namespaces: dict[str, dict[str, Table]]
    purged: list[tuple[str, str]] = field(default_factory=list)

    def list_namespaces(self) -> list[tuple[str]]:
        return [(name,) for name in self.namespaces]

    def list_tables(self, namespace: str) -> list[tuple[str, str]]:
        return [(namespace, name) for name in self.namespaces[namespace]]

    def load_table(self, identifier: tuple[str, str]) -> Table:
        namespace, name = identifier
        return self.namespaces[namespace][name]

    def drop_table(self, identifier: tuple[str, str]) -> None:
        namespace, name = identifier
        del self.namespaces[namespace][name]

    def purge_table(self, identifier: tuple[str, str]) -> None:
        self.purged.append(identifier)
        self.drop_table(identifier)

    def drop_namespace(self, namespace: str) -> None:
        assert not self.namespaces[namespace], "a catalogue refuses one with tables"
        del self.namespaces[namespace]


class Stack:
    """The AWS side of a stack whose lake is elsewhere."""

    stack_id = ID

    def __init__(self, prefix: str) -> None:
        self.outputs = {"DatabasePrefix": prefix}

    def output(self, name: str) -> str:
        return self.outputs[name]

    def client(self, service: str) -> Any:
        return boto3.client(cast("Any", service), region_name="us-east-1")


PLACES = {
    "rest": LakeCatalogue(kind="rest", uri="https://catalogue.example", warehouse="w"),
    "s3tables": LakeCatalogue(
        kind="s3tables", warehouse="arn:aws:s3tables:us-east-1:123456789012:bucket/lake"
    ),
}


def lake(
    monkeypatch: pytest.MonkeyPatch, kind: str, catalogue: Catalogue, prefix: str = "lakesync_1a2b"
) -> LakeTables:
    monkeypatch.setattr(removal, "described", lambda _: PLACES[kind])
    monkeypatch.setattr(removal, "open_catalogue", lambda _: catalogue)
    return LakeTables(cast("Any", Stack(prefix)), [])


def shared() -> Catalogue:
    """Return a catalogue with tables of the stack, of another with its prefix, and of others."""
    return Catalogue({
        "lakesync_1a2b_acme": {"todos": Table(OWN, "acme/todos"), "notes": Table(OWN, "acme/n")},
        "lakesync_1a2b_shop": {
            "orders": Table(OWN, "shop/orders"), "theirs": Table({STACK: "another"}, "shop/theirs"),
        },
        "lakesync_1a2b_empty": {},
        "lakesync_1a2bc": {"near": Table(OWN, "near")},
        "sales": {"facts": Table({}, "facts")},
    })  # fmt: skip


LEFT = {
    "lakesync_1a2b_shop": ["theirs"], "lakesync_1a2bc": ["near"], "sales": ["facts"],
}  # fmt: skip


def left(catalogue: Catalogue) -> dict[str, list[str]]:
    return {name: list(tables) for name, tables in catalogue.namespaces.items()}


@pytest.mark.parametrize("kind", PLACES)
def test_the_stacks_lake_tables_are_listed_apart_from_foreign_ones(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    tables = lake(monkeypatch, kind, shared())

    assert tables.names() == [
        "lakesync_1a2b_acme.todos", "lakesync_1a2b_acme.notes", "lakesync_1a2b_shop.orders",
    ]  # fmt: skip
    assert ["lakesync_1a2b_shop.theirs" in each for each in tables.foreign()] == [True]


def test_dropping_tables_of_a_rest_catalogue_removes_their_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalogue = shared()
    keys = ["acme/todos/data/1.parquet", "acme/n/metadata/1.json", "shop/orders/data/1.parquet"]
    kept = ["acme/todos2/data/1.parquet", "shop/theirs/data/1.parquet"]
    with mock_aws():
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket=BUCKET)
        for key in (*keys, *kept):
            s3.put_object(Bucket=BUCKET, Key=key, Body=b"1")
        tables = lake(monkeypatch, "rest", catalogue)
        tables.drop()
        tables.drop()

        there = [each["Key"] for each in s3.list_objects_v2(Bucket=BUCKET)["Contents"]]
    assert there == kept
    assert (left(catalogue), catalogue.purged) == (LEFT, [])


def test_dropping_tables_of_s3_tables_purges_them(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = shared()
    tables = lake(monkeypatch, "s3tables", catalogue)
    tables.drop()
    tables.drop()

    assert left(catalogue) == LEFT
    assert len(catalogue.purged) == 3


def test_an_empty_namespace_under_a_configured_prefix_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalogue = Catalogue({"mine_empty": {}, "mine_acme": {"todos": Table(OWN, "a")}})
    lake(monkeypatch, "s3tables", catalogue, "mine").drop()

    assert left(catalogue) == {"mine_empty": []}
