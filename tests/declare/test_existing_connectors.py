"""Registrations of connectors as existing clients send them: translated, or refused with reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.connectors.registry import configured, connector_type
from lakesync.declare.existing_connectors import translated
from lakesync.declare.flows import read_connector
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from pydantic import BaseModel

CURSOR = {"type": "cursor", "cursorColumn": "updated_at", "lookbackMs": 5_001}
ORDERS = {"table": "orders", "query": "SELECT * FROM shop.orders", "strategy": CURSOR}
POSTGRES: dict[str, Any] = {
    "type": "postgres",
    "name": "shop",
    "postgres": {"connectionString": "postgres://ann:p%40ss@db.example.com:6432/sales"},
    "ingest": {"tables": [ORDERS], "intervalMs": 120_000, "chunkSize": 500},
}
JIRA: dict[str, Any] = {
    "type": "jira",
    "name": "tickets",
    "jira": {"domain": "mycompany", "email": "ann@example.com", "apiToken": "hidden"},
}


def settings_of(body: dict[str, Any]) -> BaseModel:
    wanted = read_connector(translated(body))
    return configured(connector_type(wanted.type), wanted.configuration)


def changed(body: dict[str, Any], place: str, value: object) -> dict[str, Any]:
    """Return a body with another value at a place; without it if it is None."""
    first, _, rest = place.partition(".")
    if rest:
        return body | {first: changed(body[first], rest, value)}
    return {k: v for k, v in (body | {first: value}).items() if v is not None}


def test_existing_database_registration_is_translated_with_its_tables_and_interval() -> None:
    wanted = read_connector(translated(POSTGRES))
    settings: Any = settings_of(POSTGRES)

    assert (wanted.name, wanted.type, wanted.every_minutes) == ("shop", "postgres", 2)
    assert (settings.host, settings.port, settings.database) == ("db.example.com", 6432, "sales")
    assert (settings.user, settings.password.get_secret_value()) == ("ann", "p@ss")
    assert (settings.tls, settings.overlap_s) == ("encrypt", 6)
    (table,) = settings.tables
    assert (table.name, table.table, table.key) == ("orders", "orders", ["id"])
    assert (table.query, table.cursor_column) == ("SELECT * FROM shop.orders", "updated_at")


def test_existing_registration_with_a_diff_strategy_is_translated() -> None:
    table = {
        "table": "todos",
        "query": "select todo_id, title from todos;",
        "rowIdColumn": "todo_id",
        "strategy": {"type": "diff"},
    }
    url = "mysql://ann:p@db.example.com/shop?sslmode=verify-full"
    body = {
        "type": "mysql",
        "name": "shop",
        "mysql": {"connectionString": url},
        "ingest": {"tables": [table]},
    }
    settings: Any = settings_of(body)

    assert read_connector(translated(body)).every_minutes == 1
    assert (settings.port, settings.tls) == (3306, "verify")
    assert settings.tables[0].query == "select todo_id, title from todos"
    assert (settings.tables[0].key, settings.tables[0].cursor_column) == (["todo_id"], None)


@pytest.mark.parametrize(
    ("change", "tables", "projects"),
    [
        ({}, ["issues", "comments", "projects"], []),
        ({"includeComments": False}, ["issues", "projects"], []),
        ({"includeProjects": False, "jql": "project = HR"}, ["issues", "comments"], ["HR"]),
        ({"jql": "project in (HR, IT)"}, ["issues", "comments", "projects"], ["HR", "IT"]),
    ],
)
def test_existing_jira_registration_is_translated(
    change: dict[str, Any], tables: list[str], projects: list[str]
) -> None:
    settings: Any = settings_of(JIRA | {"jira": JIRA["jira"] | change})

    assert settings.site == "https://mycompany.atlassian.net"
    assert [table.name for table in settings.tables] == tables
    assert settings.projects == projects


def test_registration_in_the_current_form_is_left_unchanged() -> None:
    bodies: tuple[Any, ...] = (
        {"type": "jira", "name": "j", "configuration": {"site": "https://x.atlassian.net"}},
        {"type": "postgres", "name": "p", "everyMinutes": 5},
        {"type": "of-ones-own", "name": "o", "of-ones-own": {}},
        {"type": "jira", "name": "j"},
        {"type": 7},
        [],
        None,
    )
    for body in bodies:
        assert translated(body) is body


FIRST = "ingest.tables[0]"


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        (changed(POSTGRES, "ingest.intervalMs", 10_000), "ingest.intervalMs", "is at least 60000"),
        (changed(POSTGRES, "ingest.intervalMs", 90_000), "ingest.intervalMs", "multiple of 60000"),
        (changed(POSTGRES, "ingest.intervalMs", "1"), "ingest.intervalMs", "whole number"),
        (changed(POSTGRES, "ingest", None), "ingest.tables", "POST /admin/destinations"),
        (changed(POSTGRES, "ingest.tables", []), "ingest.tables", "a destination here"),
        (changed(POSTGRES, "ingest.tables", [7]), FIRST, "must be an object"),
        (changed(POSTGRES, "ingest.more", 1), "ingest.more", "no such field"),
        (changed(POSTGRES, "more", 1), "more", "no such field"),
        (changed(POSTGRES, "postgres", "x"), "postgres", "must be an object"),
        (changed(POSTGRES, "postgres.ssl", True), "postgres.ssl", "no such field"),
        (JIRA | {"jira": JIRA["jira"] | {"jql": "labels = x"}}, "jira.jql", "sync rules"),
        (JIRA | {"jira": JIRA["jira"] | {"domain": "a.b"}}, "jira.domain", "mycompany for"),
        (JIRA | {"jira": JIRA["jira"] | {"includeComments": 1}}, "jira.includeComments", "true or"),
        (JIRA | {"ingest": {"tables": []}}, "ingest.tables", "no such field"),
        ({"type": "bigquery", "name": "b", "bigquery": {"projectId": "p"}}, "bigquery", "a file"),
        ({"type": "salesforce", "name": "s", "salesforce": {"password": "hidden"}}, "salesforce",
         "client credentials"),
    ],
)  # fmt: skip
def test_unsupported_registration_field_is_refused_with_an_explanation(
    body: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(ValidationFailed, match=says) as refused:
        translated(body)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"query": ""}, "query"),
        ({"table": 5}, "table"),
        ({"rowIdColumn": ["a", "b"]}, "rowIdColumn"),
        ({"strategy": "diff"}, "strategy"),
        ({"strategy": {"type": "log"}}, "strategy.type"),
        ({"strategy": {"type": "cursor"}}, "strategy.cursorColumn"),
        ({"strategy": CURSOR | {"lookbackMs": -1}}, "strategy.lookbackMs"),
        ({"more": 1}, "more"),
    ],
)
def test_invalid_table_of_a_registration_is_refused_with_its_path(
    change: dict[str, Any], field: str
) -> None:
    body = changed(POSTGRES, "ingest.tables", [ORDERS | change])
    with pytest.raises(ValidationFailed) as refused:
        translated(body)
    assert refused.value.field == f"{FIRST}.{field}"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://ann:hidden@db.example.com/sales",
        "postgres://db.example.com/sales",
        "postgres://ann:hidden@db.example.com",
        "postgres://ann:hidden@db.example.com:port/sales",
        "postgres://ann:hidden@db.example.com/sales?application_name=x",
        "postgres://ann:hidden@db.example.com/sales?sslmode=maybe",
        "postgres://ann:hidden@[db/sales",
        "host=db.example.com password=hidden",
    ],
)
def test_invalid_connection_string_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        translated(changed(POSTGRES, "postgres.connectionString", url))
    assert refused.value.field == "postgres.connectionString"
    assert "hidden" not in str(refused.value)
    assert refused.value.__cause__ is None
