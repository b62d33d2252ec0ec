"""Jira's fields as columns: their names, types and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.connectors.deltas import identifier
from lakesync.connectors.instants import instant, utc_text
from lakesync.connectors.jira.configuration import ALL
from lakesync.connectors.port import SourceColumn
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


Convert = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else str(value)


def _time(value: Any) -> str:
    return utc_text(instant(value), "milliseconds")


def _plain(value: Any) -> Any:
    """Return the short form of a Jira value: its account, value, key or name, else all of it."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        if "child" in value and "value" in value:  # a cascading choice
            return [value["value"], _plain(value["child"])]
        for name in ("accountId", "value", "name"):
            if name in value:
                return value[name]
    return value


def _named(name: str) -> Convert:
    return lambda value: value.get(name) if isinstance(value, dict) else value


class Field(NamedTuple):
    """One field, as a column."""

    id: str
    """What Jira calls it."""
    column: str
    type: str
    convert: Convert = _same


ISSUE_FIELDS: Final = (
    Field("summary", "summary", "string"),
    Field("status", "status", "string", _named("name")),
    Field("issuetype", "issue_type", "string", _named("name")),
    Field("priority", "priority", "string", _named("name")),
    Field("resolution", "resolution", "string", _named("name")),
    Field("project", "project", "string", _named("key")),
    Field("parent", "parent", "string", _named("key")),
    Field("assignee", "assignee", "string", _named("accountId")),
    Field("reporter", "reporter", "string", _named("accountId")),
    Field("creator", "creator", "string", _named("accountId")),
    Field("labels", "labels", "json"),
    Field("components", "components", "json", _plain),
    Field("fixVersions", "fix_versions", "json", _plain),
    Field("versions", "versions", "json", _plain),
    Field("description", "description", "json"),
    Field("environment", "environment", "json"),
    Field("created", "created", "timestamp", _time),
    Field("updated", "updated", "timestamp", _time),
    Field("resolutiondate", "resolved", "timestamp", _time),
    Field("duedate", "due", "date"),
    Field("timeoriginalestimate", "original_estimate_s", "integer"),
    Field("timeestimate", "remaining_estimate_s", "integer"),
    Field("timespent", "time_spent_s", "integer"),
)
"""What is read of an issue beside custom fields."""
COMMENT_FIELDS: Final = (
    Field("author", "author", "string", _named("accountId")),
    Field("updateAuthor", "update_author", "string", _named("accountId")),
    Field("body", "body", "json"),
    Field("visibility", "visibility", "json"),
    Field("created", "created", "timestamp", _time),
    Field("updated", "updated", "timestamp", _time),
)
WORKLOG_FIELDS: Final = (
    Field("issueId", "issue_id", "string", _text),
    Field("author", "author", "string", _named("accountId")),
    Field("updateAuthor", "update_author", "string", _named("accountId")),
    Field("comment", "comment", "json"),
    Field("started", "started", "timestamp", _time),
    Field("timeSpentSeconds", "time_spent_s", "integer"),
    Field("created", "created", "timestamp", _time),
    Field("updated", "updated", "timestamp", _time),
)
PROJECT_FIELDS: Final = (
    Field("key", "key", "string"),
    Field("name", "name", "string"),
    Field("projectTypeKey", "type", "string"),
    Field("lead", "lead", "string", _named("accountId")),
    Field("projectCategory", "category", "string", _named("name")),
    Field("description", "description", "string"),
    Field("archived", "archived", "boolean"),
)
USER_FIELDS: Final = (
    Field("accountType", "account_type", "string"),
    Field("displayName", "display_name", "string"),
    Field("emailAddress", "email", "string"),
    Field("active", "active", "boolean"),
    Field("timeZone", "time_zone", "string"),
)
_NAMED: Final = frozenset({
    "component", "group", "issuetype", "option", "option-with-child", "priority", "project",
    "resolution", "status", "string", "user", "version",
})  # fmt: skip
"""Types whose values are brought by their names; all others as JSON, whole."""
_BY_TYPE: Final[Mapping[str, tuple[str, Convert]]] = {
    "string": ("string", _text),
    "number": ("number", _same),
    "date": ("date", _same),
    "datetime": ("timestamp", _time),
    "user": ("string", _named("accountId")),
    "option": ("string", _named("value")),
}


def values(row: Mapping[str, Any], fields: Iterable[Field]) -> dict[str, Any]:
    """Return a row's columns.

    Raises:
        ValueError: a value is not of its field's type; the message names the field.
    """
    columns = {}
    for field in fields:
        value = row.get(field.id)
        try:
            columns[field.column] = None if value is None else field.convert(value)
        except (ValueError, TypeError) as exc:
            raise ValueError(f"{field.id}: {exc}") from exc
    return columns


def source_columns(fields: Sequence[Field], *keys: str) -> tuple[SourceColumn, ...]:
    """Return a table's columns."""
    first = tuple(SourceColumn(key, "string", nullable=False) for key in keys)
    return first + tuple(SourceColumn(field.column, field.type) for field in fields)


def custom_fields(described: Iterable[Mapping[str, Any]], wanted: Sequence[str]) -> list[Field]:
    """Return the wanted custom fields, by name or id. Ambiguous names get the id appended.

    Raises:
        AdapterRefused: there is no field with a name.
    """
    known = [each for each in described if each.get("custom")]
    taken = {field.column for field in ISSUE_FIELDS} | {"id", "key"}
    names = [identifier(str(each.get("name", "")).lower()) for each in known]
    fields, met = [], set()
    for each, name in zip(known, names, strict=True):
        by = {each["id"], str(each.get("name", ""))} & set(wanted)
        met |= by
        if not by and ALL not in wanted:
            continue
        column = name
        if names.count(name) > 1 or name in taken:
            column = identifier(f"{name[:40]}_{each['id'].removeprefix('customfield_')}")
        fields.append(Field(each["id"], column, *_type_of(each.get("schema") or {})))
    missing = sorted(set(wanted) - met - {ALL})
    if missing:
        raise AdapterRefused(
            f"Jira has no custom field {', '.join(missing)}: name it as its administration does, "
            "or by its id"
        )
    return fields


def _type_of(schema: Mapping[str, Any]) -> tuple[str, Convert]:
    """Return the type of a custom field's values, and how they are converted."""
    if str(schema.get("custom", "")).endswith(":textarea"):
        return "json", _same  # a document
    kind = str(schema.get("type"))
    named = schema.get("items") if kind == "array" else kind
    # A sprint, an SLA, an asset or what an app adds is more than its name.
    return _BY_TYPE.get(kind, ("json", _plain if named in _NAMED else _same))
