"""The table of issues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.connectors.jira.api import BULK_ISSUES_MAX, milliseconds
from lakesync.connectors.jira.columns import ISSUE_FIELDS, Field, values
from lakesync.connectors.jira.walk import Walk, place_of
from lakesync.connectors.port import Change, SourcePage
from lakesync.connectors.records import changes_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.connectors.jira.api import JiraApi
    from lakesync.connectors.jira.configuration import JiraSettings
    from lakesync.connectors.port import Unreadable
    from lakesync.connectors.storage import Storage

TABLE = "issues"


def read(
    api: JiraApi,
    settings: JiraSettings,
    storage: Storage,
    custom: Sequence[Field],
    cursor: str,
    rows_max: int,
    poll_ms: int,
) -> SourcePage:
    """Return changed issues; periodically also deleted ones, and those that searches missed."""
    walk, place = Walk(api, settings, storage, TABLE), place_of(cursor)
    fields = (*ISSUE_FIELDS, *custom)
    wanted = [field.id for field in fields]
    gone: list[str] = []
    issues: Sequence[Mapping[str, Any]] = []
    more = True
    if place.step == "changes":
        issues = walk.changed(place, wanted, rows_max).issues
        more = bool(place.token) or not walk.ended(place, poll_ms)
    elif place.step == "list":
        walk.note_all(place, poll_ms)
    else:
        # They are fetched a hundred at a time, within one page's time.
        gone, missing = walk.compare(place, poll_ms, min(rows_max, 2 * BULK_ISSUES_MAX))
        issues = walk.within(api.by_ids(missing, wanted))
        more = bool(place.object) or not walk.ended(place, poll_ms)
    changes, unreadable = changes_of(issues, fields)
    walk.given.add(change.row_id for change in changes)
    changes += [Change(row_id, None) for row_id in gone]
    return SourcePage(tuple(changes), place.to_text(), more, tuple(unreadable))


def changes_of(
    issues: Iterable[Mapping[str, Any]], fields: Sequence[Field]
) -> tuple[list[Change], list[Unreadable]]:
    """Return issues as changes, and those that do not follow Jira's API."""

    def change(row_id: str, issue: Mapping[str, Any]) -> Change:
        columns = {"id": row_id, "key": issue["key"], **values(issue["fields"], fields)}
        return Change(row_id, columns, 1000 * milliseconds(issue["fields"]["updated"]))

    return changes_in(issues, "id", change)
