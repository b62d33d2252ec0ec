"""The table of worklogs: Jira lists changed and deleted ones, with their times."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.jira.api import milliseconds
from lakesync.connectors.jira.columns import WORKLOG_FIELDS, values
from lakesync.connectors.jira.walk import project_of
from lakesync.connectors.port import Change, SourcePage
from lakesync.connectors.records import changes_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.connectors.jira.api import JiraApi
    from lakesync.connectors.jira.configuration import JiraSettings
    from lakesync.connectors.port import Unreadable

TABLE: Final = "worklogs"
_STEPS: Final = ("updated", "deleted")
_IS_LISTED: Final = {"worklogId", "updatedTime"}


def begun_at(cursor: str, at_ms: int) -> str:
    """Return the cursor from which changes since a time are read again; never a later one."""
    place: dict[str, Any] = json.loads(cursor) if cursor else {}
    moved = {step: min(place[step], at_ms) for step in _STEPS if step in place}
    if all(place[step] == moved[step] for step in moved):
        return cursor
    return json.dumps(moved, sort_keys=True)


def read(api: JiraApi, settings: JiraSettings, cursor: str) -> SourcePage:
    """Return worklogs that changed, and then those that were deleted."""
    place: dict[str, Any] = json.loads(cursor) if cursor else {"updated": 0, "deleted": 0}
    step = place.get("step", _STEPS[0])
    since_ms = place.get("since", max(place[step] - 1000 * settings.overlap_s, 0))
    page = api.worklogs_changed(step, since_ms)
    changed = [each for each in page.get("values", []) if each.keys() >= _IS_LISTED]
    unreadable: tuple[Unreadable, ...] = ()
    if step == "deleted":
        changes = tuple(
            Change(str(each["worklogId"]), None, 1000 * int(each["updatedTime"]))
            for each in changed
        )
    else:
        changes, unreadable = _read(api, settings, [int(each["worklogId"]) for each in changed])
    place[step] = max([place[step], *(int(each["updatedTime"]) for each in changed)])
    place.pop("since", None)
    until_ms = int(page.get("until", 0))
    if not page.get("lastPage", True) and until_ms > since_ms:
        place |= {"step": step, "since": until_ms}
    elif step == _STEPS[0]:
        place["step"] = _STEPS[1]
    else:
        del place["step"]
    return SourcePage(changes, json.dumps(place, sort_keys=True), "step" in place, unreadable)


def _read(
    api: JiraApi, settings: JiraSettings, ids: list[int]
) -> tuple[tuple[Change, ...], tuple[Unreadable, ...]]:
    changes, unreadable = changes_in(_within(api, settings, api.worklogs(ids)), "id", _change)
    return tuple(changes), tuple(unreadable)


def _change(row_id: str, worklog: Mapping[str, Any]) -> Change:
    columns = {"id": row_id, **values(worklog, WORKLOG_FIELDS)}
    return Change(row_id, columns, 1000 * milliseconds(worklog["updated"]))


def _within(
    api: JiraApi, settings: JiraSettings, worklogs: list[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return those of the configured projects: Jira lists worklogs of all."""
    if not settings.projects:
        return worklogs
    ids = dict.fromkeys(str(each["issueId"]) for each in worklogs if "issueId" in each)
    issues = api.by_ids(ids, ["project"])
    wanted = {str(issue["id"]) for issue in issues if project_of(issue) in settings.projects}
    return [each for each in worklogs if str(each.get("issueId")) in wanted]
