"""Reads the issues of a site: the changed ones, then periodically all, to detect deletions.

A search filters and orders by ``updated``. JQL's resolution is a minute of the account's time zone,
so a search begins at the minute in which the overlap begins. Its pages are linked by tokens, which
say after which issue a page begins. An issue that changes meanwhile moves to the end, and is read
again.

Rules of this module
    1. The next poll begins at the latest change that was read, minus the overlap. Only Jira's times
       count, not our clock's. It never begins after Jira's current time, as imported issues may be
       dated years ahead.
    2. All pages of one search have the same JQL. If Jira no longer accepts a token, the search is
       restarted at its position.
    3. Issues that searches miss, such as imported ones that changed long ago, are detected in the
       listing of all issues, and then read.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.given import Given
from lakesync.connectors.http_answers import NOT_AS_DESCRIBED
from lakesync.connectors.jira.api import LISTED_MAX, SEARCHED_MAX, milliseconds
from lakesync.errors import AdapterFailed, AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.connectors.jira.api import JiraApi, Searched
    from lakesync.connectors.jira.configuration import JiraSettings
    from lakesync.connectors.storage import Storage

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
        """Write it."""
        return json.dumps(asdict(self), separators=(",", ":"))


def place_of(cursor: str) -> Place:
    """Read what `Place.to_text` wrote."""
    return Place(**json.loads(cursor)) if cursor else Place()


def begun_at(cursor: str, at_ms: int) -> str:
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
        api: the site.
        settings: the projects, and how often all issues are listed.
        storage: the connector's.
        table: the table whose rows the issues own.
    """

    def __init__(self, api: JiraApi, settings: JiraSettings, storage: Storage, table: str) -> None:
        self._api = api
        self._settings = settings
        self.given = Given(storage, table)

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
        """Note a page of all issues that there are."""
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
        """Whether only some projects are read."""
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
