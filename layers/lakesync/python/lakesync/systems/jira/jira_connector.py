"""Jira Cloud as a source: issues, comments, worklogs, projects and users.

Webhooks of Jira Cloud: an issue was created, changed or deleted. Only the issue's id is taken from
an event; the issue itself is read by the API, as events represent fields differently. So a webhook
and a poll give the same row with the same time: a duplicate.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync.connectors import missing_rows
from lakesync.connectors.http import NOT_AS_DESCRIBED
from lakesync.connectors.port import (
    Change,
    ConnectorType,
    Signed,
    SourcePage,
    SourceTable,
    Unreadable,
    WebhookType,
    check_hub_signature,
)
from lakesync.errors import AdapterFailed, AdapterRefused, LakeSyncError, ValidationFailed
from lakesync.result import Err, Ok
from lakesync.systems.jira import jira_issues
from lakesync.systems.jira.jira_api import (
    COMMENT_FIELDS,
    ISSUE_FIELDS,
    PROJECT_FIELDS,
    USER_FIELDS,
    WORKLOG_FIELDS,
    JiraApi,
    JiraField,
    JiraSettings,
    custom_fields,
    source_columns,
    values,
)
from lakesync.systems.jira.jira_issues import Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.connectors.port import Connector, Delivery, Outside, Storage
    from lakesync.result import Result

# --- webhooks -------------------------------------------------------------------------------------


REPEATED_S_MAX: Final = 7_200
"""The oldest accepted signature of an event: Jira repeats an undelivered event unchanged up to five
times, each up to 15 minutes later."""
DELETED: Final = "jira:issue_deleted"
_CHANGED: Final = ("jira:issue_created", "jira:issue_updated")
_NOTHING: Final = SourcePage((), "", has_more=False)


def verified(secret: str, headers: Mapping[str, str], body: bytes) -> Signed:
    """Verify an event; its time is part of its body.

    Raises:
        AuthFailed: it is not signed with the secret.
        ValidationFailed: it is not an event of Jira.
    """
    delivery = check_hub_signature(secret, headers, body)
    sent_ms = _event(body).get("timestamp")
    if type(sent_ms) is not int:
        raise ValidationFailed("an event of Jira has a timestamp", field="timestamp")
    return Signed(delivery, sent_ms)


def read_delivery(
    api: JiraApi,
    settings: JiraSettings,
    storage: Storage,
    custom: Callable[[], Sequence[JiraField]],
    delivery: Delivery,
) -> SourcePage:
    """Return the issue of an event; nothing for events that are not about issues.

    Raises:
        ValidationFailed: it names no issue.
    """
    event = _event(delivery.body)
    kind = event.get("webhookEvent")
    if kind not in {DELETED, *_CHANGED} or jira_issues.ISSUES_TABLE not in settings.named():
        return _NOTHING
    row_id, key = _named(event)
    if kind == DELETED:
        wanted = not settings.projects or key.rpartition("-")[0] in settings.projects
        gone = Change(row_id, None, 1000 * delivery.sent_ms, jira_issues.ISSUES_TABLE)
        return SourcePage((gone,) if wanted else (), "", has_more=False)
    fields = (*ISSUE_FIELDS, *custom())
    walk = Walk(api, settings, storage, jira_issues.ISSUES_TABLE)
    there = walk.within(api.by_ids([row_id], [field.id for field in fields]))
    if there:
        walk.given.note_by_webhook(row_id)
    changes, unreadable = jira_issues.changes_of(there, fields)
    return SourcePage(
        tuple(each._replace(table=jira_issues.ISSUES_TABLE) for each in changes),
        "",
        has_more=False,
        unreadable=tuple(
            Unreadable(each.row_id, each.reason, jira_issues.ISSUES_TABLE) for each in unreadable
        ),
    )


def _event(body: bytes) -> dict[str, Any]:
    try:
        event = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise ValidationFailed("an event of Jira is JSON") from exc
    if not isinstance(event, dict):
        raise ValidationFailed("an event of Jira is an object")
    return event


def _named(event: Mapping[str, Any]) -> tuple[str, str]:
    issue = event.get("issue")
    row_id, key = (issue.get("id"), issue.get("key")) if isinstance(issue, dict) else (None, None)
    if not (isinstance(row_id, str | int) and str(row_id).isdecimal() and isinstance(key, str)):
        raise ValidationFailed("an event of an issue has its id and its key", field="issue")
    return str(row_id), key


# --- reading --------------------------------------------------------------------------------------


T = TypeVar("T")


class JiraConnector:
    """`lakesync.connectors.Connector` of one Jira Cloud site."""

    def __init__(self, settings: JiraSettings, storage: Storage, outside: Outside) -> None:
        self._settings = settings
        self._storage = storage
        self._api = JiraApi(settings, outside)

    def check(self) -> Result[str, LakeSyncError]:
        """Check that the site answers, and that the configured projects and fields exist."""

        def work() -> str:
            name = self._api.account().get("displayName", "")
            _ = self._custom
            missing = [key for key in self._settings.projects if self._api.project(key) is None]
            if missing:
                raise AdapterRefused(
                    f"{name} sees no project {', '.join(missing)}: name it by its key, or give "
                    "the account the permission to browse it"
                )
            tables = ", ".join(table.name for table in self._settings.tables)
            return f"{self._settings.site} answers {name}, and has {tables}."

        return _tried(work)

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        def work() -> tuple[SourceTable, ...]:
            known = {
                "issues": source_columns([*ISSUE_FIELDS, *self._custom], "id", "key"),
                "comments": source_columns(COMMENT_FIELDS, "id", "issue_id"),
                "worklogs": source_columns(WORKLOG_FIELDS, "id"),
                "projects": source_columns(PROJECT_FIELDS, "id"),
                "users": source_columns(USER_FIELDS, "id"),
            }
            return tuple(SourceTable(name, columns, ("id",)) for name, columns in known.items())

        return _tried(work)

    def columns(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        """Return the configured tables; of their fields only custom ones can change."""

        def work() -> tuple[SourceTable, ...]:
            wanted = self._settings.named()
            return tuple(table for table in self.discover().unwrap() if table.name in wanted)

        return _tried(work)

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        api, settings, storage = self._api, self._settings, self._storage

        def work() -> SourcePage:
            if table == jira_issues.ISSUES_TABLE:
                return jira_issues.read_issues(
                    api, settings, storage, self._custom, cursor, rows_max, poll_ms
                )
            if table == jira_issues.COMMENTS_TABLE:
                return jira_issues.read_comments(api, settings, storage, cursor, rows_max, poll_ms)
            if table == jira_issues.WORKLOGS_TABLE:
                return jira_issues.read_worklogs(api, settings, storage, cursor, rows_max, poll_ms)
            if table in self._listings:
                return missing_rows.read_listing(
                    table, self._listings[table], storage, cursor, poll_ms
                )
            raise ValidationFailed(f"Jira has no table {table[:60]}", field="table")

        return _tried(work)

    def on_webhook(self, delivery: Delivery) -> Result[SourcePage, LakeSyncError]:
        """Return the current state of an event's issue, or its deletion."""

        def work() -> SourcePage:
            return read_delivery(
                self._api, self._settings, self._storage, lambda: self._custom, delivery
            )

        return _tried(work)

    def close(self) -> None:
        self._api.close()

    @cached_property
    def _custom(self) -> Sequence[JiraField]:
        wanted = self._settings.custom_fields
        return custom_fields(self._api.fields(), wanted) if wanted else ()

    @cached_property
    def _listings(self) -> Mapping[str, missing_rows.Listing]:
        def projects(start: int) -> tuple[list[tuple[str, dict[str, Any]]], int | None]:
            some, following = self._api.projects(start)
            wanted = self._settings.projects
            return [
                (str(each["id"]), {"id": str(each["id"]), **values(each, PROJECT_FIELDS)})
                for each in some if not wanted or each["key"] in wanted
            ], following  # fmt: skip

        def users(start: int) -> tuple[list[tuple[str, dict[str, Any]]], int | None]:
            some, following = self._api.users(start)
            return [
                (each["accountId"], {"id": each["accountId"], **values(each, USER_FIELDS)})
                for each in some
            ], following

        return {
            "projects": missing_rows.Listing(projects, self._has_project),
            "users": missing_rows.Listing(users, lambda each: self._api.user(each) is not None),
        }

    def _has_project(self, row_id: str) -> bool:
        # An issue that is no longer configured counts as deleted.
        project, wanted = self._api.project(row_id), self._settings.projects
        return project is not None and (not wanted or project["key"] in wanted)


def _tried(work: Callable[[], T]) -> Result[T, LakeSyncError]:
    try:
        return Ok(work())
    except LakeSyncError as error:
        return Err(error)
    except NOT_AS_DESCRIBED as exc:
        return Err(AdapterFailed(f"Jira's answer is not as its API says: {type(exc).__name__}"))


# --- the type -------------------------------------------------------------------------------------


LISTED: Final = frozenset({"projects", "users"})
"""Tables that are listed whole at each poll."""


def _jira(settings: JiraSettings, storage: Storage, outside: Outside) -> Connector:

    return JiraConnector(settings, storage, outside)


def _begins_at(_: JiraSettings, source: str, cursor: str, at_us: int) -> str:
    from lakesync.systems.jira import jira_issues  # noqa: PLC0415 - when asked for

    if source in LISTED:
        raise ValidationFailed(
            f"{source} of Jira are listed whole, and have no times of change: name the flow's "
            "other tables, or leave it out to read everything again",
            field="from",
        )
    begun_at = (
        jira_issues.worklogs_begun_at
        if source == jira_issues.WORKLOGS_TABLE
        else jira_issues.issues_begun_at
    )
    return begun_at(cursor, at_us // 1_000)


JIRA = ConnectorType(
    "jira", "Jira Cloud", JiraSettings, _jira, JiraSettings.named, begins_at=_begins_at,
    webhook=WebhookType("webhookSecret", verified, REPEATED_S_MAX),
)  # fmt: skip
