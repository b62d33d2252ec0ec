"""The API of Jira Cloud, version 3: how a connector is configured for it, its fields, requests.

Issues are searched by ``/search/jql``, whose pages are linked by tokens. A token says after which
issue of the order a page begins, and is valid only for its own search.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import quote
from zoneinfo import ZoneInfo

from pydantic import Field, SecretStr, field_validator, model_validator

from lakesync.connectors.http import CREDENTIALS, Caller
from lakesync.connectors.pages import identifier, instant, microseconds, utc_text
from lakesync.connectors.port import OVERLAP_S_MAX, Name, NamedTable, Settings, SourceColumn
from lakesync.errors import AdapterFailed, AdapterRefused, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime
    from typing import Self

    from lakesync.connectors.http import Answer
    from lakesync.connectors.port import Outside
    from lakesync.errors import LakeSyncError

# --- settings -------------------------------------------------------------------------------------


PROJECTS_MAX = 100
"""Projects that a Jira connector is restricted to; they are part of each search."""
CUSTOM_FIELDS_MAX = 300
"""Custom fields of issues that are read; each is a column."""
WEBHOOK_SECRET_CHARS_MIN = 16
"""The shortest secret that Jira signs webhooks with."""
RECONCILE_MINUTES_MAX = 43_200
"""The longest time between two searches for deletions."""
ALL = "*"
TableName = Literal["issues", "comments", "worklogs", "projects", "users"]
ProjectKey = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{1,254}$")]


class JiraTable(NamedTable):
    """One table that is read."""

    name: TableName
    as_: Name | None = Field(None, alias="as", description="Its name in the gateway; else jira_….")

    @property
    def table(self) -> str:
        return self.as_ or f"jira_{self.name}"


class JiraSite(Settings):
    """The address of a Jira Cloud site, and the account for requests."""

    site: str = Field(max_length=255, description="https://….atlassian.net")
    email: Name = Field(description="The e-mail address of the account that the token is of.")
    api_token: SecretStr = Field(description="An API token of that account.")

    @field_validator("site")
    @classmethod
    def _is_origin(cls, value: str) -> str:
        site = value.rstrip("/")
        scheme, _, host = site.partition("://")
        if scheme not in {"https", "http"} or not host or set("/@?# \\") & set(host):
            raise ValueError("site is https:// and the host of your Jira, and nothing more")
        return site


def _all_tables() -> list[JiraTable]:
    names: tuple[TableName, ...] = ("issues", "comments", "worklogs", "projects", "users")
    return [JiraTable(name=name, **{"as": None}) for name in names]


class JiraSettings(JiraSite):
    """A Jira Cloud site that is polled."""

    tables: list[JiraTable] = Field(default_factory=_all_tables, min_length=1)
    projects: list[ProjectKey] = Field(
        default_factory=list, max_length=PROJECTS_MAX,
        description="Keys of projects; none: all that the account may see.",
    )  # fmt: skip
    custom_fields: list[Name] = Field(
        default_factory=list, max_length=CUSTOM_FIELDS_MAX,
        description="Custom fields of issues, by name or id; * for all.",
    )  # fmt: skip
    overlap_s: int = Field(
        300, ge=0, le=OVERLAP_S_MAX,
        description="How late Jira's search may show a change: so much is read again at each poll.",
    )  # fmt: skip
    reconcile_minutes: int = Field(
        1_440, ge=0, le=RECONCILE_MINUTES_MAX,
        description="How often issues and comments are compared with what was brought, to notice "
        "those that were deleted.",
    )  # fmt: skip
    webhook_secret: SecretStr | None = Field(
        None, min_length=WEBHOOK_SECRET_CHARS_MIN, max_length=512,
        description="The secret of a webhook in Jira: changes of issues are here at once.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names = [table.name for table in self.tables]
        if len(set(names)) < len(names):
            raise ValueError("a table is named twice")
        return self

    def named(self) -> Mapping[str, str]:
        """Return the tables by Jira's name, with the gateway's."""
        return {table.name: table.table for table in self.tables}


# --- fields ---------------------------------------------------------------------------------------


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


class JiraField(NamedTuple):
    """One field, as a column."""

    id: str
    """What Jira calls it."""
    column: str
    type: str
    convert: Convert = _same


ISSUE_FIELDS: Final = (
    JiraField("summary", "summary", "string"),
    JiraField("status", "status", "string", _named("name")),
    JiraField("issuetype", "issue_type", "string", _named("name")),
    JiraField("priority", "priority", "string", _named("name")),
    JiraField("resolution", "resolution", "string", _named("name")),
    JiraField("project", "project", "string", _named("key")),
    JiraField("parent", "parent", "string", _named("key")),
    JiraField("assignee", "assignee", "string", _named("accountId")),
    JiraField("reporter", "reporter", "string", _named("accountId")),
    JiraField("creator", "creator", "string", _named("accountId")),
    JiraField("labels", "labels", "json"),
    JiraField("components", "components", "json", _plain),
    JiraField("fixVersions", "fix_versions", "json", _plain),
    JiraField("versions", "versions", "json", _plain),
    JiraField("description", "description", "json"),
    JiraField("environment", "environment", "json"),
    JiraField("created", "created", "timestamp", _time),
    JiraField("updated", "updated", "timestamp", _time),
    JiraField("resolutiondate", "resolved", "timestamp", _time),
    JiraField("duedate", "due", "date"),
    JiraField("timeoriginalestimate", "original_estimate_s", "integer"),
    JiraField("timeestimate", "remaining_estimate_s", "integer"),
    JiraField("timespent", "time_spent_s", "integer"),
)
"""What is read of an issue beside custom fields."""
COMMENT_FIELDS: Final = (
    JiraField("author", "author", "string", _named("accountId")),
    JiraField("updateAuthor", "update_author", "string", _named("accountId")),
    JiraField("body", "body", "json"),
    JiraField("visibility", "visibility", "json"),
    JiraField("created", "created", "timestamp", _time),
    JiraField("updated", "updated", "timestamp", _time),
)
WORKLOG_FIELDS: Final = (
    JiraField("issueId", "issue_id", "string", _text),
    JiraField("author", "author", "string", _named("accountId")),
    JiraField("updateAuthor", "update_author", "string", _named("accountId")),
    JiraField("comment", "comment", "json"),
    JiraField("started", "started", "timestamp", _time),
    JiraField("timeSpentSeconds", "time_spent_s", "integer"),
    JiraField("created", "created", "timestamp", _time),
    JiraField("updated", "updated", "timestamp", _time),
)
PROJECT_FIELDS: Final = (
    JiraField("key", "key", "string"),
    JiraField("name", "name", "string"),
    JiraField("projectTypeKey", "type", "string"),
    JiraField("lead", "lead", "string", _named("accountId")),
    JiraField("projectCategory", "category", "string", _named("name")),
    JiraField("description", "description", "string"),
    JiraField("archived", "archived", "boolean"),
)
USER_FIELDS: Final = (
    JiraField("accountType", "account_type", "string"),
    JiraField("displayName", "display_name", "string"),
    JiraField("emailAddress", "email", "string"),
    JiraField("active", "active", "boolean"),
    JiraField("timeZone", "time_zone", "string"),
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


def values(row: Mapping[str, Any], fields: Iterable[JiraField]) -> dict[str, Any]:
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


def source_columns(fields: Sequence[JiraField], *keys: str) -> tuple[SourceColumn, ...]:
    first = tuple(SourceColumn(key, "string", nullable=False) for key in keys)
    return first + tuple(SourceColumn(field.column, field.type) for field in fields)


def custom_fields(described: Iterable[Mapping[str, Any]], wanted: Sequence[str]) -> list[JiraField]:
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
        fields.append(JiraField(each["id"], column, *_type_of(each.get("schema") or {})))
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


# --- requests -------------------------------------------------------------------------------------


BULK_ISSUES_MAX: Final = 100
"""Issues that are fetched by their ids at a time; Jira's maximum."""
SEARCHED_MAX: Final = 100
"""Issues of one page of a search, with their fields."""
LISTED_MAX: Final = 5_000
"""Issues of one page of a search for nothing but their ids."""
COMMENTS_MAX: Final = 100
"""Comments of one issue that are requested at a time."""
_API: Final = "/rest/api/3"
_NOT_LOGGED_IN: Final = ("AUTHENTICATED_FAILED", "AUTHENTICATION_DENIED")


class Searched(NamedTuple):
    """A page of a search."""

    issues: Sequence[Mapping[str, Any]]
    token: str
    """Of the next page; empty behind the last."""
    date: datetime | None
    """When it was, by Jira's clock."""


class JiraApi:
    """Sends requests to one site. Raises the errors of `lakesync.connectors.http`."""

    def __init__(self, site: JiraSite, outside: Outside) -> None:
        token = site.api_token.get_secret_value()
        login = base64.b64encode(f"{site.email}:{token}".encode()).decode()
        self.caller = Caller(
            site.site,
            outside,
            {"authorization": f"Basic {login}"},
            refusal=_not_logged_in,
        )

    def account(self) -> Mapping[str, Any]:
        account: Mapping[str, Any] = self.caller.get(f"{_API}/myself")
        return account

    @cached_property
    def zone(self) -> ZoneInfo:
        """The account's time zone, which times of a search are in."""
        name = self.account().get("timeZone") or "UTC"
        try:
            return ZoneInfo(name)
        except (ValueError, KeyError, OSError) as exc:
            raise AdapterRefused(
                f"the time zone {name[:60]!r} of the account is not known here: give it another"
            ) from exc

    def fields(self) -> list[Mapping[str, Any]]:
        return list(self.caller.get(f"{_API}/field"))

    def search(self, jql: str, fields: Sequence[str], rows_max: int, token: str = "") -> Searched:
        body: dict[str, Any] = {"jql": jql, "fields": list(fields), "maxResults": rows_max}
        if token:
            body["nextPageToken"] = token
        answer = self.caller.send("POST", f"{_API}/search/jql", body=body)
        given = answer.json()
        ended = given.get("isLast", "nextPageToken" not in given)
        following = "" if ended else given.get("nextPageToken") or ""
        if following and following == token:
            raise AdapterFailed("Jira gave the same page again")
        return Searched(given.get("issues", []), following, answer.date())

    def by_ids(self, ids: Iterable[str], fields: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return those of some issues that there are, and that the account may see."""
        wanted, issues = list(ids), []
        for at in range(0, len(wanted), BULK_ISSUES_MAX):
            body = {"issueIdsOrKeys": wanted[at : at + BULK_ISSUES_MAX], "fields": list(fields)}
            issues += self.caller.post(f"{_API}/issue/bulkfetch", body).get("issues", [])
        return issues

    def comments(self, issue_id: str, start: int) -> tuple[list[Mapping[str, Any]], int]:
        """Return some comments of an issue, oldest first, and their total number.

        Raises:
            NotFound: there is no such issue.
        """
        given = self.caller.get(
            f"{_API}/issue/{quote(issue_id, safe='')}/comment",
            startAt=start, maxResults=COMMENTS_MAX, orderBy="created",
        )  # fmt: skip
        return list(given.get("comments", [])), int(given.get("total", 0))

    def comments_by_ids(self, ids: Sequence[str]) -> set[str]:
        given = self.caller.post(f"{_API}/comment/list", {"ids": [int(each) for each in ids]})
        return {str(comment["id"]) for comment in given.get("values", [])}

    def worklogs_changed(self, what: str, since_ms: int) -> Mapping[str, Any]:
        """Return a page of the worklogs that were ``updated`` or ``deleted`` since a time."""
        page: Mapping[str, Any] = self.caller.get(f"{_API}/worklog/{what}", since=since_ms)
        return page

    def worklogs(self, ids: Sequence[int]) -> list[Mapping[str, Any]]:
        """Return some worklogs: those that there are, and that the account may see."""
        return list(self.caller.post(f"{_API}/worklog/list", {"ids": list(ids)})) if ids else []

    def projects(self, start: int) -> tuple[list[Mapping[str, Any]], int | None]:
        page = self.caller.get(
            f"{_API}/project/search",
            startAt=start, maxResults=50, orderBy="key", expand="description,lead",
        )  # fmt: skip
        projects = list(page.get("values", []))
        return projects, None if page.get("isLast", not projects) else start + len(projects)

    def users(self, start: int) -> tuple[list[Mapping[str, Any]], int | None]:
        users = list(self.caller.get(f"{_API}/users/search", startAt=start, maxResults=1_000))
        return users, start + len(users) if users else None

    def project(self, id_or_key: str) -> Mapping[str, Any] | None:
        """Return a project; None if there is none, or the account may not see it."""
        return self._one(f"project/{quote(id_or_key, safe='')}")

    def user(self, account_id: str) -> Mapping[str, Any] | None:
        return self._one("user", accountId=account_id)

    def _one(self, path: str, **query: str) -> Mapping[str, Any] | None:
        try:
            thing: Mapping[str, Any] = self.caller.get(f"{_API}/{path}", **query)
        except NotFound:
            return None
        return thing

    def close(self) -> None:
        self.caller.close()


def milliseconds(text: str) -> int:
    """Return a time of Jira in milliseconds since 1970.

    Raises:
        ValueError: it is not a time.
    """
    return microseconds(instant(text)) // 1_000


def _not_logged_in(answer: Answer) -> LakeSyncError | None:
    """Refuse answers to anonymous requests: some are empty instead of an error."""
    reason = answer.headers.get("x-seraph-loginreason", "")
    if any(word in reason for word in _NOT_LOGGED_IN):
        return AdapterRefused("Jira refuses the e-mail address and API token", field=CREDENTIALS)
    return None
