"""The tables of Jira's issues, their comments and their worklogs, read by walking the issues.

Reads the issues of a site: the changed ones, then periodically all, to detect deletions. A search
filters and orders by ``updated``. JQL's resolution is a minute of the account's time zone, so a
search begins at the minute in which the overlap begins. Its pages are linked by tokens, which say
after which issue a page begins. An issue that changes meanwhile moves to the end, and is read
again.

Rules of the walk
    1. The next poll begins at the latest change that was read, minus the overlap. Only Jira's times
       count, not our clock's. It never begins after Jira's current time, as imported issues may be
       dated years ahead.
    2. All pages of one search have the same JQL. If Jira no longer accepts a token, the search is
       restarted at its position.
    3. Issues that searches miss, such as imported ones that changed long ago, are detected in the
       listing of all issues, and then read.

The table of comments, which are read with their changed issues. A search returns an issue with its
first comments; the comments of an issue with more are read separately, page by page. Comments that
an issue no longer has are deletions.

The table of worklogs: Jira lists changed and deleted ones, with their times. Jira does not list the
worklogs that go with their issue, or come back with it. They are noticed as those of comments are:
by comparing all issues with those whose worklogs were given.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.connectors.http import NOT_AS_DESCRIBED, changes_in
from lakesync.connectors.missing_rows import KnownRows
from lakesync.connectors.port import Change, SourcePage
from lakesync.errors import AdapterFailed, AdapterRefused, NotFound
from lakesync.systems.jira.jira_api import (
    BULK_ISSUES_MAX,
    COMMENT_FIELDS,
    COMMENTS_MAX,
    ISSUE_FIELDS,
    LISTED_MAX,
    SEARCHED_MAX,
    WORKLOG_FIELDS,
    JiraField,
    milliseconds,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.connectors.port import Storage, Unreadable
    from lakesync.systems.jira.jira_api import JiraApi, JiraSettings, Searched

    Comments: TypeAlias = dict[str, Sequence[Mapping[str, Any]]]
    """Comments by the id of their issue."""

# --- the walk -------------------------------------------------------------------------------------


_LONG_AGO: Final = "1970-01-02 00:00"
"""JQL that restricts nothing is refused."""
_MINUTE_MS: Final = 60_000


@dataclass
class Place:
    """How far a table is that is read by its issues: the cursor."""

    top: int = 0
    """The latest change that was read, in milliseconds."""
    since: int = -1
    """Where the current search begins; -1 if there is none."""
    token: str = ""
    """The next page of the search or listing."""
    step: str = "changes"
    """``changes``, then maybe ``list`` and ``compare``."""
    object: str = ""
    """Of the comparison: the name of the one before."""
    at: int = 0
    """The next of the missing parts to read."""
    pending: list[str] = field(default_factory=list)
    """Issues whose comments are read next, one after another."""
    start: int = 0
    """How many comments of the first of them were read."""
    compared: int = 0
    """The poll that last began to list all."""

    def to_text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def place_of(cursor: str) -> Place:
    return Place(**json.loads(cursor)) if cursor else Place()


def issues_begun_at(cursor: str, at_ms: int) -> str:
    """Return the cursor from which changes since a time are read again.

    That is the current cursor, if it is earlier. A comparison in progress is restarted.
    """
    place = place_of(cursor)
    if place.top <= at_ms:
        return cursor
    if place.step != "changes":
        place.step, place.object, place.compared = "changes", "", 0
    place.top, place.since, place.token, place.at = at_ms, -1, "", 0
    return place.to_text()


class Walk:
    """Reads the issues of one site, for one table.

    Args:
        settings: the projects, and how often all issues are listed.
        table: the table whose rows the issues own.
    """

    def __init__(self, api: JiraApi, settings: JiraSettings, storage: Storage, table: str) -> None:
        self._api = api
        self._settings = settings
        self.given = KnownRows(storage, table)

    def changed(self, place: Place, fields: Sequence[str], rows_max: int) -> Searched:
        """Return the next issues that changed, and move the place on behind them."""
        if place.since < 0:
            place.since = max(place.top - 1000 * self._settings.overlap_s, 0)
        page = self._searched(place, fields, min(rows_max, SEARCHED_MAX))
        if not all("fields" in issue for issue in page.issues):
            raise AdapterFailed("Jira's answer is not as its API says: issues without fields")
        updated = list(filter(None, map(_updated, page.issues)))
        top = max([place.top, *updated])
        if page.date is not None:
            top = min(top, max(round(page.date.timestamp() * 1000), place.top))
        place.top, place.token = top, page.token
        return page

    def ended(self, place: Place, poll_ms: int) -> bool:
        """End a step, and begin to list all issues if it is due; returns whether the poll ends."""
        place.since, place.token, place.at = -1, "", 0
        is_due = poll_ms - place.compared >= self._settings.reconcile_minutes * _MINUTE_MS
        if place.step == "changes" and is_due:
            place.step, place.compared = "list", poll_ms
            return False
        place.step = "changes"
        return True

    def note_all(self, place: Place, poll_ms: int) -> None:
        if not place.token:
            self.given.add_by_webhook()
        jql = f'{self._scope}created >= "{_LONG_AGO}" ORDER BY created ASC'
        page = self._api.search(jql, ["id"], LISTED_MAX, place.token)
        self.given.note_listed((str(issue["id"]) for issue in page.issues), poll_ms)
        place.token = page.token
        if not page.token:
            place.step, place.object = "compare", self._object_behind("")

    def compare(self, place: Place, poll_ms: int, rows_max: int) -> tuple[list[str], list[str]]:
        """Compare the next noted rows with the listing; returns deletions, and issues to read."""
        if not place.object:
            return [], []
        gone, missing = self.given.compare(place.object, poll_ms, self.existing)
        some = list(missing[place.at : place.at + rows_max])
        gone = gone if place.at == 0 else []
        place.at += len(some)
        if place.at >= len(missing):
            place.object, place.at = self._object_behind(place.object), 0
        return list(gone), some

    def existing(self, ids: Sequence[str]) -> set[str]:
        """Return those of some issues that exist in the configured projects."""
        return {str(issue["id"]) for issue in self.within(self._api.by_ids(ids, ["project"]))}

    def within(self, issues: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return those of some issues that are in the configured projects."""
        wanted = self._settings.projects
        return [
            issue for issue in issues
            if not wanted or project_of(issue) in wanted
        ]  # fmt: skip

    @property
    def is_restricted(self) -> bool:
        return bool(self._settings.projects)

    def _searched(self, place: Place, fields: Sequence[str], rows_max: int) -> Searched:
        try:
            return self._api.search(self._jql(place.since), fields, rows_max, place.token)
        except AdapterRefused:
            if not place.token:
                raise
        place.since = max(place.top - 1000 * self._settings.overlap_s, 0)
        return self._api.search(self._jql(place.since), fields, rows_max)

    def _jql(self, since_ms: int) -> str:
        since = _LONG_AGO
        if since_ms > 0:
            zone = self._api.zone
            moment = datetime.fromtimestamp(since_ms / 1000, UTC).astimezone(zone)
            since = f"{moment:%Y-%m-%d %H:%M}"
        return f'{self._scope}updated >= "{since}" ORDER BY updated ASC'

    @property
    def _scope(self) -> str:
        keys = ", ".join(f'"{key}"' for key in self._settings.projects)  # checked: letters, digits
        return f"project in ({keys}) AND " if keys else ""

    def _object_behind(self, name: str) -> str:
        return next((each for each in self.given.objects() if each > name), "")


def _updated(issue: Mapping[str, Any]) -> int:
    """Return when an issue changed; 0 if unknown: then it does not advance the cursor."""
    try:
        return milliseconds(issue["fields"]["updated"])
    except NOT_AS_DESCRIBED:
        return 0


def project_of(issue: Mapping[str, Any]) -> str:
    """Return the key of an issue's project; empty if it does not say."""
    return str(((issue.get("fields") or {}).get("project") or {}).get("key", ""))


# --- issues ---------------------------------------------------------------------------------------


ISSUES_TABLE = "issues"


def read_issues(
    api: JiraApi,
    settings: JiraSettings,
    storage: Storage,
    custom: Sequence[JiraField],
    cursor: str,
    rows_max: int,
    poll_ms: int,
) -> SourcePage:
    """Return changed issues; periodically also deleted ones, and those that searches missed."""
    walk, place = Walk(api, settings, storage, ISSUES_TABLE), place_of(cursor)
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
    issues: Iterable[Mapping[str, Any]], fields: Sequence[JiraField]
) -> tuple[list[Change], list[Unreadable]]:
    """Return issues as changes, and those that do not follow Jira's API."""

    def change(row_id: str, issue: Mapping[str, Any]) -> Change:
        columns = {"id": row_id, "key": issue["key"], **values(issue["fields"], fields)}
        return Change(row_id, columns, 1000 * milliseconds(issue["fields"]["updated"]))

    return changes_in(issues, "id", change)


# --- comments -------------------------------------------------------------------------------------


COMMENTS_TABLE: Final = "comments"
ISSUES_MAX: Final = 25
"""Issues of one page: each may come with many comments."""
REQUESTS_MAX: Final = 10
"""Requests of one page for the comments of an issue that has many."""
_COMMENT_SEARCH_FIELDS: Final = ("updated", "comment", "project")


def read_comments(
    api: JiraApi,
    settings: JiraSettings,
    storage: Storage,
    cursor: str,
    rows_max: int,
    poll_ms: int,
) -> SourcePage:
    """Return the comments of changed issues; periodically also those of deleted issues."""
    walk, place = Walk(api, settings, storage, COMMENTS_TABLE), place_of(cursor)
    issues_max = min(rows_max, ISSUES_MAX)
    gone: list[str] = []
    comments: Comments = {}
    if place.pending:
        comments, gone = _many(api, walk, place, poll_ms, rows_max)
    elif place.step == "changes":
        comments, gone = _few(
            api,
            walk,
            place,
            poll_ms,
            walk.changed(place, _COMMENT_SEARCH_FIELDS, issues_max).issues,
        )
    elif place.step == "list":
        walk.note_all(place, poll_ms)
    else:
        gone, missing = walk.compare(place, poll_ms, issues_max)
        there = walk.within(api.by_ids(missing, _COMMENT_SEARCH_FIELDS))
        comments, more_gone = _few(api, walk, place, poll_ms, there)
        gone += more_gone
    more = True
    if not place.pending and not _goes_on(place):
        more = not walk.ended(place, poll_ms)
    changes, unreadable = _changes(comments)
    changes += [Change(row_id, None) for row_id in dict.fromkeys(gone)]
    return SourcePage(tuple(changes), place.to_text(), more, tuple(unreadable))


def _goes_on(place: Place) -> bool:
    if place.step == "changes":
        return bool(place.token)
    return place.step == "list" or bool(place.object)


def _few(
    api: JiraApi, walk: Walk, place: Place, poll_ms: int, issues: Iterable[Mapping[str, Any]]
) -> tuple[Comments, list[str]]:
    """Return the comments that arrived with issues; issues with more are left for later."""
    comments: Comments = {}
    for issue in issues:
        given = (issue.get("fields") or {}).get("comment") or {}
        some = given.get("comments", [])
        if int(given.get("total", 0)) > len(some):
            place.pending.append(str(issue["id"]))
        else:
            comments[str(issue["id"])] = some
    ids = {issue: [str(each["id"]) for each in some] for issue, some in comments.items()}
    return comments, walk.given.replace(ids, poll_ms, api.comments_by_ids)


def _many(
    api: JiraApi, walk: Walk, place: Place, poll_ms: int, rows_max: int
) -> tuple[Comments, list[str]]:
    """Return some comments of an issue with many, and after the last one the deletions."""
    issue, start = place.pending[0], place.start
    some: list[Mapping[str, Any]] = []
    total = 1
    try:
        for _ in range(min(REQUESTS_MAX, max(rows_max // COMMENTS_MAX, 1))):
            page, total = api.comments(issue, start + len(some))
            some += page
            if not page or start + len(some) >= total:
                total = 0
                break
    except NotFound:  # the issue is gone; the comparison of all issues detects it
        total = 0
    ids = [str(each["id"]) for each in some]
    place.start += len(some)
    known = walk.given.part(issue, start, ids)
    if total:
        return {issue: some}, []
    place.pending, place.start = place.pending[1:], 0
    return {issue: some}, walk.given.replace({issue: known}, poll_ms, api.comments_by_ids)


def _changes(comments: Comments) -> tuple[list[Change], list[Unreadable]]:
    changes: list[Change] = []
    unreadable: list[Unreadable] = []
    for issue, some in comments.items():
        made, bad = changes_in(some, "id", partial(_comment_change, issue))
        changes += made
        unreadable += bad
    return changes, unreadable


def _comment_change(issue: str, row_id: str, comment: Mapping[str, Any]) -> Change:
    columns = {"id": row_id, "issue_id": issue, **values(comment, COMMENT_FIELDS)}
    return Change(row_id, columns, 1000 * milliseconds(comment["updated"]))


# --- worklogs -------------------------------------------------------------------------------------


WORKLOGS_TABLE: Final = "worklogs"
WORKLOGS_MAX: Final = 1_000
"""Worklogs that are fetched by their ids at a time; Jira's maximum."""
_COMPARISON: Final = "comparison"
_STEPS: Final = ("updated", "deleted")
_IS_LISTED: Final = {"worklogId", "updatedTime"}


def worklogs_begun_at(cursor: str, at_ms: int) -> str:
    """Return the cursor from which changes since a time are read again; never a later one."""
    place: dict[str, Any] = json.loads(cursor) if cursor else {}
    moved = {step: min(place[step], at_ms) for step in _STEPS if step in place}
    if all(place[step] == moved[step] for step in moved):
        return cursor
    return json.dumps(moved, sort_keys=True)


def read_worklogs(
    api: JiraApi,
    settings: JiraSettings,
    storage: Storage,
    cursor: str,
    rows_max: int,
    poll_ms: int,
) -> SourcePage:
    """Return changed worklogs, then deleted ones; periodically also those of deleted issues."""
    place: dict[str, Any] = json.loads(cursor) if cursor else {"updated": 0, "deleted": 0}
    walk, all_issues = (
        Walk(api, settings, storage, WORKLOGS_TABLE),
        Place(**place.get(_COMPARISON, {})),
    )
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
    changes, unreadable = changes_in(worklogs, "id", _worklog_change)
    owned: dict[str, list[str]] = {}
    for change in changes:
        if change.columns and change.columns["issue_id"]:
            owned.setdefault(change.columns["issue_id"], []).append(change.row_id)
    walk.given.add_to(owned)
    return changes, unreadable


def _worklog_change(row_id: str, worklog: Mapping[str, Any]) -> Change:
    columns = {"id": row_id, **values(worklog, WORKLOG_FIELDS)}
    return Change(row_id, columns, 1000 * milliseconds(worklog["updated"]))


def _within(api: JiraApi, walk: Walk, worklogs: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return those of the configured projects: Jira lists worklogs of all."""
    if not walk.is_restricted:
        return worklogs
    ids = dict.fromkeys(str(each["issueId"]) for each in worklogs if "issueId" in each)
    wanted = {str(issue["id"]) for issue in walk.within(api.by_ids(ids, ["project"]))}
    return [each for each in worklogs if str(each.get("issueId")) in wanted]
