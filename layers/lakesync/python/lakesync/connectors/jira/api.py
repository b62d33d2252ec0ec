"""The requests to Jira Cloud: its REST API, version 3.

Issues are searched by ``/search/jql``, whose pages are linked by tokens. A token says after which
issue of the order a page begins, and is valid only for its own search.
"""

from __future__ import annotations

import base64
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote
from zoneinfo import ZoneInfo

from lakesync.connectors.http import Caller
from lakesync.connectors.http_answers import CREDENTIALS
from lakesync.connectors.instants import instant, microseconds
from lakesync.errors import AdapterFailed, AdapterRefused, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from lakesync.connectors.http_answers import Answer
    from lakesync.connectors.jira.configuration import JiraSite
    from lakesync.connectors.outside import Outside
    from lakesync.errors import LakeSyncError

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
        """Return the account of the credentials."""
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
        """Return all fields of issues."""
        return list(self.caller.get(f"{_API}/field"))

    def search(self, jql: str, fields: Sequence[str], rows_max: int, token: str = "") -> Searched:
        """Return a page of a search."""
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
        """Return which of some comments there are."""
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
        """Return some projects, and where the next begin."""
        page = self.caller.get(
            f"{_API}/project/search",
            startAt=start, maxResults=50, orderBy="key", expand="description,lead",
        )  # fmt: skip
        projects = list(page.get("values", []))
        return projects, None if page.get("isLast", not projects) else start + len(projects)

    def users(self, start: int) -> tuple[list[Mapping[str, Any]], int | None]:
        """Return some users, and where the next begin."""
        users = list(self.caller.get(f"{_API}/users/search", startAt=start, maxResults=1_000))
        return users, start + len(users) if users else None

    def project(self, id_or_key: str) -> Mapping[str, Any] | None:
        """Return a project; None if there is none, or the account may not see it."""
        return self._one(f"project/{quote(id_or_key, safe='')}")

    def user(self, account_id: str) -> Mapping[str, Any] | None:
        """Return a user; None if there is none."""
        return self._one("user", accountId=account_id)

    def _one(self, path: str, **query: str) -> Mapping[str, Any] | None:
        try:
            thing: Mapping[str, Any] = self.caller.get(f"{_API}/{path}", **query)
        except NotFound:
            return None
        return thing

    def close(self) -> None:
        """Close the connection."""
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
