"""The table of worklogs: Jira lists changed and deleted ones, with their times.

Jira does not list the worklogs that go with their issue, or come back with it. They are noticed as
those of comments are: by comparing all issues with those whose worklogs were given.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.jira.api import milliseconds
from lakesync.connectors.jira.columns import WORKLOG_FIELDS, values
from lakesync.connectors.jira.walk import Place, Walk
from lakesync.connectors.port import Change, SourcePage
from lakesync.connectors.records import changes_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.connectors.jira.api import JiraApi
    from lakesync.connectors.jira.configuration import JiraSettings
    from lakesync.connectors.port import Unreadable
    from lakesync.connectors.storage import Storage

TABLE: Final = "worklogs"
WORKLOGS_MAX: Final = 1_000
"""Worklogs that are fetched by their ids at a time; Jira's maximum."""
_COMPARISON: Final = "comparison"
_STEPS: Final = ("updated", "deleted")
_IS_LISTED: Final = {"worklogId", "updatedTime"}


def begun_at(cursor: str, at_ms: int) -> str:
    """Return the cursor from which changes since a time are read again; never a later one."""
    place: dict[str, Any] = json.loads(cursor) if cursor else {}
    moved = {step: min(place[step], at_ms) for step in _STEPS if step in place}
    if all(place[step] == moved[step] for step in moved):
        return cursor
    return json.dumps(moved, sort_keys=True)


def read(
    api: JiraApi,
    settings: JiraSettings,
    storage: Storage,
    cursor: str,
    rows_max: int,
    poll_ms: int,
) -> SourcePage:
    """Return changed worklogs, then deleted ones; periodically also those of deleted issues."""
    place: dict[str, Any] = json.loads(cursor) if cursor else {"updated": 0, "deleted": 0}
    walk, all_issues = Walk(api, settings, storage, TABLE), Place(**place.get(_COMPARISON, {}))
    if all_issues.step == "changes":
        page = _changed(api, settings, walk, place)
        has_more = "step" in place or not walk.ended(all_issues, poll_ms)
    else:
        page = _compared(api, walk, all_issues, rows_max, poll_ms)
        is_over = all_issues.step == "compare" and not all_issues.object
        has_more = not (is_over and walk.ended(all_issues, poll_ms))
    place[_COMPARISON] = {"step": all_issues.step, "compared": all_issues.compared}
    if has_more and all_issues.step != "changes":
        place[_COMPARISON] = asdict(all_issues)
    return replace(page, cursor=json.dumps(place, sort_keys=True), has_more=has_more)


def _compared(
    api: JiraApi, walk: Walk, all_issues: Place, rows_max: int, poll_ms: int
) -> SourcePage:
    """List all issues, or compare some with those whose worklogs were given.

    Returns the worklogs of deleted issues as deletions, and those of issues that exist again.
    """
    if all_issues.step == "list":
        walk.note_all(all_issues, poll_ms)
        return SourcePage((), "", has_more=True)
    gone, missing = walk.compare(all_issues, poll_ms, rows_max)
    back = [int(row_id) for row_id in walk.given.former(missing)]
    changes: list[Change] = []
    unreadable: list[Unreadable] = []
    for start in range(0, len(back), WORKLOGS_MAX):
        some, bad = _read(api, walk, back[start : start + WORKLOGS_MAX])
        changes += some
        unreadable += bad
    changes += [Change(row_id, None) for row_id in gone]
    return SourcePage(tuple(changes), "", has_more=True, unreadable=tuple(unreadable))


def _changed(api: JiraApi, settings: JiraSettings, walk: Walk, place: dict[str, Any]) -> SourcePage:
    """Return a page of Jira's list of changed or deleted worklogs, and move the place on."""
    step = place.get("step", _STEPS[0])
    since_ms = place.get("since", max(place[step] - 1000 * settings.overlap_s, 0))
    page = api.worklogs_changed(step, since_ms)
    changed = [each for each in page.get("values", []) if each.keys() >= _IS_LISTED]
    unreadable: list[Unreadable] = []
    if step == "deleted":
        changes = [
            Change(str(each["worklogId"]), None, 1000 * int(each["updatedTime"]))
            for each in changed
        ]
    else:
        changes, unreadable = _read(api, walk, [int(each["worklogId"]) for each in changed])
    place[step] = max([place[step], *(int(each["updatedTime"]) for each in changed)])
    place.pop("since", None)
    until_ms = int(page.get("until", 0))
    if not page.get("lastPage", True) and until_ms > since_ms:
        place |= {"step": step, "since": until_ms}
    elif step == _STEPS[0]:
        place["step"] = _STEPS[1]
    else:
        del place["step"]
    return SourcePage(tuple(changes), "", has_more=True, unreadable=tuple(unreadable))


def _read(api: JiraApi, walk: Walk, ids: list[int]) -> tuple[list[Change], list[Unreadable]]:
    """Return worklogs of the configured projects, and note to which issues they belong."""
    worklogs = _within(api, walk, api.worklogs(ids))
    changes, unreadable = changes_in(worklogs, "id", _change)
    owned: dict[str, list[str]] = {}
    for change in changes:
        if change.columns and change.columns["issue_id"]:
            owned.setdefault(change.columns["issue_id"], []).append(change.row_id)
    walk.given.add_to(owned)
    return changes, unreadable


def _change(row_id: str, worklog: Mapping[str, Any]) -> Change:
    columns = {"id": row_id, **values(worklog, WORKLOG_FIELDS)}
    return Change(row_id, columns, 1000 * milliseconds(worklog["updated"]))


def _within(api: JiraApi, walk: Walk, worklogs: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return those of the configured projects: Jira lists worklogs of all."""
    if not walk.is_restricted:
        return worklogs
    ids = dict.fromkeys(str(each["issueId"]) for each in worklogs if "issueId" in each)
    wanted = {str(issue["id"]) for issue in walk.within(api.by_ids(ids, ["project"]))}
    return [each for each in worklogs if str(each.get("issueId")) in wanted]
