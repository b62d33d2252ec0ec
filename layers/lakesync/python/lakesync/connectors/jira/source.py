"""The connector of Jira Cloud."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from lakesync.connectors import listing
from lakesync.connectors.http_answers import NOT_AS_DESCRIBED
from lakesync.connectors.jira import comments, issues, webhooks, worklogs
from lakesync.connectors.jira.api import JiraApi
from lakesync.connectors.jira.columns import (
    COMMENT_FIELDS,
    ISSUE_FIELDS,
    PROJECT_FIELDS,
    USER_FIELDS,
    WORKLOG_FIELDS,
    Field,
    custom_fields,
    source_columns,
    values,
)
from lakesync.connectors.port import SourceTable
from lakesync.errors import AdapterFailed, AdapterRefused, LakeSyncError, ValidationFailed
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.connectors.jira.configuration import JiraSettings
    from lakesync.connectors.outside import Outside
    from lakesync.connectors.port import Delivery, SourcePage
    from lakesync.connectors.storage import Storage
    from lakesync.result import Result

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
        """Return the tables, with the configured custom fields."""

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
        """Return a page."""
        api, settings, storage = self._api, self._settings, self._storage

        def work() -> SourcePage:
            if table == issues.TABLE:
                return issues.read(api, settings, storage, self._custom, cursor, rows_max, poll_ms)
            if table == comments.TABLE:
                return comments.read(api, settings, storage, cursor, rows_max, poll_ms)
            if table == worklogs.TABLE:
                return worklogs.read(api, settings, storage, cursor, rows_max, poll_ms)
            if table in self._listings:
                return listing.read(table, self._listings[table], storage, cursor, poll_ms)
            raise ValidationFailed(f"Jira has no table {table[:60]}", field="table")

        return _tried(work)

    def on_webhook(self, delivery: Delivery) -> Result[SourcePage, LakeSyncError]:
        """Return the current state of an event's issue, or its deletion."""

        def work() -> SourcePage:
            return webhooks.read(
                self._api, self._settings, self._storage, lambda: self._custom, delivery
            )

        return _tried(work)

    def close(self) -> None:
        """Close the connection."""
        self._api.close()

    @cached_property
    def _custom(self) -> Sequence[Field]:
        wanted = self._settings.custom_fields
        return custom_fields(self._api.fields(), wanted) if wanted else ()

    @cached_property
    def _listings(self) -> Mapping[str, listing.Listing]:
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
            "projects": listing.Listing(projects, self._has_project),
            "users": listing.Listing(users, lambda each: self._api.user(each) is not None),
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
