"""The table of comments, which are read with their changed issues.

A search returns an issue with its first comments; the comments of an issue with more are read
separately, page by page. Comments that an issue no longer has are deletions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.connectors.jira.api import COMMENTS_MAX, milliseconds
from lakesync.connectors.jira.columns import COMMENT_FIELDS, values
from lakesync.connectors.jira.walk import Place, Walk, place_of
from lakesync.connectors.port import Change, SourcePage
from lakesync.connectors.records import changes_in
from lakesync.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.connectors.jira.api import JiraApi
    from lakesync.connectors.jira.configuration import JiraSettings
    from lakesync.connectors.port import Unreadable
    from lakesync.connectors.storage import Storage

    Comments: TypeAlias = dict[str, Sequence[Mapping[str, Any]]]
    """Comments by the id of their issue."""

TABLE: Final = "comments"
ISSUES_MAX: Final = 25
"""Issues of one page: each may come with many comments."""
REQUESTS_MAX: Final = 10
"""Requests of one page for the comments of an issue that has many."""
_FIELDS: Final = ("updated", "comment", "project")


def read(
    api: JiraApi,
    settings: JiraSettings,
    storage: Storage,
    cursor: str,
    rows_max: int,
    poll_ms: int,
) -> SourcePage:
    """Return the comments of changed issues; periodically also those of deleted issues."""
    walk, place = Walk(api, settings, storage, TABLE), place_of(cursor)
    issues_max = min(rows_max, ISSUES_MAX)
    gone: list[str] = []
    comments: Comments = {}
    if place.pending:
        comments, gone = _many(api, walk, place, poll_ms, rows_max)
    elif place.step == "changes":
        comments, gone = _few(
            api, walk, place, poll_ms, walk.changed(place, _FIELDS, issues_max).issues
        )
    elif place.step == "list":
        walk.note_all(place, poll_ms)
    else:
        gone, missing = walk.compare(place, poll_ms, issues_max)
        there = walk.within(api.by_ids(missing, _FIELDS))
        comments, more_gone = _few(api, walk, place, poll_ms, there)
        gone += more_gone
    more = True
    if not place.pending and not _goes_on(place):
        more = not walk.ended(place, poll_ms)
    changes, unreadable = _changes(comments)
    changes += [Change(row_id, None) for row_id in dict.fromkeys(gone)]
    return SourcePage(tuple(changes), place.to_text(), more, tuple(unreadable))


def _goes_on(place: Place) -> bool:
    """Return whether the current step has more."""
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
        made, bad = changes_in(some, "id", partial(_change, issue))
        changes += made
        unreadable += bad
    return changes, unreadable


def _change(issue: str, row_id: str, comment: Mapping[str, Any]) -> Change:
    columns = {"id": row_id, "issue_id": issue, **values(comment, COMMENT_FIELDS)}
    return Change(row_id, columns, 1000 * milliseconds(comment["updated"]))
