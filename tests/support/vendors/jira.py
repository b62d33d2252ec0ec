"""Plays a Jira Cloud site over HTTP, by the shapes of its REST API, version 3.

Its clock stands still until something happens, and may be ahead or behind ours. Its search lags: an
issue is found as it was `lag_s` ago. Times of JQL are minutes of the account's time zone.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from lakesync.connectors import Storage
from lakesync.systems.jira.jira_api import JiraSettings
from lakesync.systems.jira.jira_connector import JiraConnector
from tests.support.lake import Objects
from tests.support.vendors.server import Asked, Reply, VendorServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EMAIL, TOKEN = "bot@example.com", "atlassian-token"
JQL = re.compile(
    r'(?:project in \((?P<projects>[^)]*)\) AND )?(?P<field>updated|created) >= "(?P<since>[^"]+)"'
    r" ORDER BY (?P<order>updated|created) ASC"
)
SEARCH_MAX, COMMENTS_SHOWN = 100, 20
FIELDS = [
    {"id": "summary", "name": "Summary", "custom": False, "schema": {"type": "string"}},
    {"id": "customfield_10016", "name": "Story Points", "custom": True,
     "schema": {"type": "number", "custom": "com.atlassian.jira:float", "customId": 10016}},
    {"id": "customfield_10020", "name": "Team", "custom": True,
     "schema": {"type": "option", "custom": "com.atlassian.jira:select", "customId": 10020}},
    {"id": "customfield_10021", "name": "Team", "custom": True,
     "schema": {"type": "array", "items": "option", "customId": 10021}},
    {"id": "customfield_10022", "name": "Status", "custom": True,
     "schema": {"type": "string", "custom": "com.atlassian.jira:textarea", "customId": 10022}},
    {"id": "customfield_10023", "name": "Sprint", "custom": True,
     "schema": {"type": "array", "items": "json",
                "custom": "com.pyxis.greenhopper.jira:gh-sprint"}},
    {"id": "customfield_10024", "name": "Time to resolution", "custom": True,
     "schema": {"type": "sd-servicelevelagreement",
                "custom": "com.atlassian.servicedesk:sd-sla-field"}},
]  # fmt: skip


@dataclass
class Issue:
    """An issue, with its comments; `history` is what the search may still show."""

    id: str
    key: str
    created: datetime
    updated: datetime
    fields: dict[str, Any]
    comments: list[dict[str, Any]] = field(default_factory=list)
    history: list[tuple[datetime, datetime, dict[str, Any]]] = field(default_factory=list)
    """When it was changed, its `updated` and its fields then."""

    @property
    def project(self) -> str:
        return self.key.partition("-")[0]


class JiraServer(VendorServer):
    """A Jira Cloud site; also the bench of the contract of connectors, by its issues' summaries."""

    table = "issues"
    notices_deletions = True

    def __init__(self) -> None:
        super().__init__()
        self.issues: dict[str, Issue] = {}
        self.worklogs: dict[str, dict[str, Any]] = {}
        self.worklogs_deleted: list[tuple[int, int]] = []
        self.projects: dict[str, dict[str, Any]] = {}
        self.users: dict[str, dict[str, Any]] = {}
        self.clock = datetime(2026, 3, 29, 0, 40, tzinfo=UTC)
        self.step = timedelta(milliseconds=7)
        self.lag_s = 0.0
        self.hidden: set[str] = set()
        """Issues that the account may not see."""
        self.zone = "Europe/Vienna"
        self.is_login_right = True
        self.before_each: Callable[[Asked], None] | None = None
        self.storage = Storage(Objects(), "g", "c")
        self.transitions: dict[str, str] = {"11": "In Progress", "21": "Done"}
        self.assignees = {"acc-1", "acc-2"}
        self._ids = itertools.count(10_000)
        self._made: list[JiraConnector] = []

    # ---- what people do ---------------------------------------------------------------------

    def now_s(self) -> float:
        return self.clock.timestamp()

    def tick(self) -> datetime:
        self.clock += self.step
        return self.clock

    def put(self, rows: Mapping[str, Any]) -> None:
        """Create or change issues, by id."""
        for row_id, value in rows.items():
            self.change(row_id, summary=value)

    def change(self, row_id: str, *, project: str = "ACME", **fields: Any) -> Issue:
        now = self.tick()
        issue = self.issues.get(row_id)
        if issue is None:
            issue = Issue(row_id, f"{project}-{row_id}", now, now, {"labels": []})
            self.issues[row_id] = issue
        issue.fields = {**issue.fields, **fields}
        issue.updated = now
        issue.history.append((now, now, issue.fields))
        return issue

    def touch(self, issue: Issue) -> None:
        issue.updated = self.tick()
        issue.history.append((self.clock, self.clock, issue.fields))

    def comment(self, issue_id: str, text: str) -> str:
        issue, comment_id = self.issues[issue_id], str(next(self._ids))
        self.touch(issue)
        issue.comments.append({
            "id": comment_id, "body": document(text), "author": {"accountId": "acc-1"},
            "created": self.clock, "updated": self.clock,
        })  # fmt: skip
        return comment_id

    def edit_comment(self, issue_id: str, comment_id: str, text: str) -> None:
        self.touch(self.issues[issue_id])
        (comment,) = (c for c in self.issues[issue_id].comments if c["id"] == comment_id)
        comment |= {"body": document(text), "updated": self.clock}

    def delete_comment(self, issue_id: str, comment_id: str) -> None:
        issue = self.issues[issue_id]
        self.touch(issue)
        issue.comments = [c for c in issue.comments if c["id"] != comment_id]

    def delete(self, row_id: str) -> None:
        self.tick()
        del self.issues[row_id]

    def log_work(self, issue_id: str, seconds: int, worklog_id: str = "") -> str:
        worklog_id = worklog_id or str(next(self._ids))
        now = self.tick()
        before = self.worklogs.get(worklog_id, {"created": now})
        self.worklogs[worklog_id] = {
            "id": worklog_id, "issueId": issue_id, "timeSpentSeconds": seconds,
            "author": {"accountId": "acc-1"}, "started": before["created"],
            "created": before["created"], "updated": now,
        }  # fmt: skip
        return worklog_id

    def delete_worklog(self, worklog_id: str) -> None:
        del self.worklogs[worklog_id]
        self.worklogs_deleted.append((int(worklog_id), _ms(self.tick())))

    # ---- the bench --------------------------------------------------------------------------

    def settings(self, **more: Any) -> JiraSettings:
        return JiraSettings.model_validate(
            {"site": self.url, "email": EMAIL, "apiToken": TOKEN, "reconcileMinutes": 0} | more
        )

    def connector(self, **more: Any) -> JiraConnector:
        self._made.append(JiraConnector(self.settings(**more), self.storage, self.outside))
        return self._made[-1]

    def value(self, columns: Mapping[str, Any]) -> Any:
        return columns["summary"]

    def close(self) -> None:
        for each in self._made:
            each.close()
        super().close()

    # ---- the API ----------------------------------------------------------------------------

    def answer(self, asked: Asked) -> Reply:
        if self.before_each:
            self.before_each(asked)
        login = base64.b64encode(f"{EMAIL}:{TOKEN}".encode()).decode()
        if asked.headers.get("authorization") != f"Basic {login}" or not self.is_login_right:
            if asked.path.endswith("/search/jql"):  # what a stranger sees: nothing
                headers = {"x-seraph-loginreason": "AUTHENTICATED_FAILED"}
                return Reply(200, {"issues": [], "isLast": True}, headers)
            return Reply(401, {"errorMessages": ["Client must be authenticated"]})
        path = asked.path.removeprefix("/rest/api/3/")
        for method, pattern, name in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == asked.method:
                answered: Reply = getattr(self, f"_{name}")(asked, *match.groups())
                return answered
        return Reply(404, {"errorMessages": [f"no {asked.method} {path}"]})

    def _myself(self, _: Asked) -> Reply:
        return Reply(body={"accountId": "acc-0", "displayName": "Bot", "timeZone": self.zone})

    def _gone(self, _: Asked) -> Reply:
        return Reply(410, {"errorMessages": ["The requested API has been removed."]})

    def _field(self, _: Asked) -> Reply:
        return Reply(body=FIELDS)

    def _search(self, asked: Asked) -> Reply:
        body = asked.json()
        labelled = re.fullmatch(r'labels = "([^"]+)"', body["jql"])
        if labelled:
            shown_as = [(each, self._as_searched(each)) for each in self.issues.values()]
            some = [issue for issue, at in shown_as if at and labelled[1] in at[1]["labels"]]
            return Reply(body={"issues": [{"id": e.id, "key": e.key} for e in some]})
        match = JQL.fullmatch(body["jql"])
        if match is None:
            return _bad("Unbounded JQL queries are not allowed here, or it is malformed.")
        keys = re.findall(r'"([^"]+)"', match["projects"] or "")
        local = datetime.strptime(match["since"], "%Y-%m-%d %H:%M")  # noqa: DTZ007
        since = local.replace(tzinfo=ZoneInfo(self.zone)).astimezone(UTC)
        behind = _token(body.get("nextPageToken"), body["jql"])
        if behind is None:
            return _bad("The nextPageToken is invalid or expired.")
        shown = []
        for issue in self.issues.values():
            seen = self._as_searched(issue)
            if seen is None or issue.id in self.hidden or (keys and issue.project not in keys):
                continue
            at = seen[0] if match["field"] == "updated" else issue.created
            if at >= since and (_ms(at), int(issue.id)) > behind:
                shown.append((_ms(at), int(issue.id), issue, seen))
        shown.sort(key=lambda each: each[:2])
        ids_only = set(body["fields"]) <= {"id", "key"}
        page = shown[: min(body["maxResults"], 5_000 if ids_only else SEARCH_MAX)]
        answer: dict[str, Any] = {
            "issues": [self._shown(issue, *seen, body["fields"]) for _, _, issue, seen in page],
            "isLast": len(page) == len(shown),
        }
        if not answer["isLast"]:
            place = {"jql": body["jql"], "behind": page[-1][:2]}
            answer["nextPageToken"] = base64.urlsafe_b64encode(json.dumps(place).encode()).decode()
        return Reply(body=answer)

    def _as_searched(self, issue: Issue) -> tuple[datetime, dict[str, Any]] | None:
        horizon = self.clock - timedelta(seconds=self.lag_s)
        seen = [(updated, fields) for at, updated, fields in issue.history if at <= horizon]
        return seen[-1] if seen else None

    def _shown(
        self, issue: Issue, updated: datetime, fields: dict[str, Any], wanted: list[str]
    ) -> dict[str, Any]:
        known = {
            **fields,
            "project": {"key": issue.project, "id": issue.project},
            "created": self._time(issue.created),
            "updated": self._time(updated),
            "comment": {
                "comments": [self._comment(each) for each in issue.comments[:COMMENTS_SHOWN]],
                "maxResults": COMMENTS_SHOWN, "total": len(issue.comments), "startAt": 0,
            },
        }  # fmt: skip
        shown = {"id": issue.id, "key": issue.key, "self": f"{self.url}/x"}
        if set(wanted) <= {"id", "key"}:
            return shown
        return shown | {"fields": {each: known.get(each) for each in wanted if each in known}}

    def _bulk(self, asked: Asked) -> Reply:
        body = asked.json()
        if not 0 < len(body["issueIdsOrKeys"]) <= 100:
            return _bad("between 1 and 100 issues")
        there = self.issues.keys() - self.hidden
        some = [self.issues[each] for each in body["issueIdsOrKeys"] if each in there]
        shown = [self._shown(each, each.updated, each.fields, body["fields"]) for each in some]
        return Reply(body={"issues": shown, "issueErrors": []})

    def _comments(self, asked: Asked, issue_id: str) -> Reply:
        issue = self._by_key(issue_id)
        if issue is None:
            return _no_issue()
        start, most = int(asked.query.get("startAt", 0)), min(int(asked.query["maxResults"]), 100)
        comments = issue.comments
        if asked.query["orderBy"] == "-created":
            comments = comments[::-1]
        if asked.query.get("expand") != "properties":
            comments = [{k: v for k, v in c.items() if k != "properties"} for c in comments]
        some = [self._comment(each) for each in comments[start : start + most]]
        return Reply(body={
            "comments": some, "startAt": start, "maxResults": most, "total": len(comments),
        })  # fmt: skip

    def _by_key(self, wanted: str) -> Issue | None:
        seen = (each for each in self.issues.values() if each.id not in self.hidden)
        return next((each for each in seen if wanted in {each.id, each.key}), None)

    def _issue(self, asked: Asked, wanted: str) -> Reply:
        issue = self._by_key(wanted)
        if issue is None:
            return _no_issue()
        fields = asked.query["fields"].split(",")
        return Reply(body=self._shown(issue, issue.updated, issue.fields, fields))

    def _create(self, asked: Asked) -> Reply:
        fields = asked.json()["fields"]
        if fields["issuetype"]["name"] not in {"Task", "Bug"}:
            return Reply(400, {"errors": {"issuetype": "Specify a valid issue type"}})
        issue_id = str(next(self._ids))
        made = {name: value for name, value in fields.items() if name != "project"}
        issue = self.change(
            issue_id, project=fields["project"]["key"], **made, status={"name": "Open"}
        )
        return Reply(201, {"id": issue.id, "key": issue.key})

    def _add_comment(self, asked: Asked, wanted: str) -> Reply:
        issue = self._by_key(wanted)
        if issue is None:
            return _no_issue()
        comment_id = self.comment(issue.id, "")
        issue.comments[-1] |= asked.json()
        return Reply(201, {"id": comment_id})

    def _offered(self, _: Asked, wanted: str) -> Reply:
        if self._by_key(wanted) is None:
            return _no_issue()
        offered = [
            {"id": each, "name": f"To {name}", "to": {"name": name}}
            for each, name in self.transitions.items()
        ]
        return Reply(body={"transitions": offered})

    def _transition(self, asked: Asked, wanted: str) -> Reply:
        issue = self._by_key(wanted)
        assert issue is not None
        status = {"name": self.transitions[asked.json()["transition"]["id"]]}
        self.change(issue.id, status=status, moves=issue.fields.get("moves", 0) + 1)
        return Reply(204)

    def _assign(self, asked: Asked, wanted: str) -> Reply:
        issue, account = self._by_key(wanted), asked.json()["accountId"]
        if issue is None:
            return _no_issue()
        if account is not None and account not in self.assignees:
            return Reply(400, {"errors": {"assignee": "User cannot be assigned issues."}})
        self.change(issue.id, assignee=account and {"accountId": account})
        return Reply(204)

    def _comment(self, comment: dict[str, Any]) -> dict[str, Any]:
        times = {name: self._time(comment[name]) for name in ("created", "updated")}
        return comment | times

    def _comment_list(self, asked: Asked) -> Reply:
        wanted = asked.json()["ids"]
        if len(wanted) > 1_000:
            return _bad("at most 1000 ids")
        seen = (issue for issue in self.issues.values() if issue.id not in self.hidden)
        there = [c for issue in seen for c in issue.comments]
        some = [self._comment(c) for c in there if int(c["id"]) in wanted]
        return Reply(body={"values": some, "total": len(some), "isLast": True})

    def _worklogs_changed(self, asked: Asked, what: str) -> Reply:
        newest = _ms(self.clock) - 60_000  # Jira leaves out the last minute
        changes = (
            [(int(each["id"]), _ms(each["updated"])) for each in self.worklogs.values()]
            if what == "updated" else self.worklogs_deleted
        )  # fmt: skip
        since = int(asked.query["since"])
        due = sorted((at, each) for each, at in changes if since <= at <= newest)
        page, more = due[:1_000], due[1_000:]
        return Reply(body={
            "values": [{"worklogId": each, "updatedTime": at} for at, each in page],
            "since": since, "until": page[-1][0] if page else since, "lastPage": not more,
        })  # fmt: skip

    def _worklog_list(self, asked: Asked) -> Reply:
        wanted, seen = asked.json()["ids"], self.issues.keys() - self.hidden
        there = [self.worklogs[str(each)] for each in wanted if str(each) in self.worklogs]
        some = [each for each in there if each["issueId"] in seen]
        times = ("created", "updated", "started")
        return Reply(body=[each | {t: self._time(each[t]) for t in times} for each in some])

    def _project_search(self, asked: Asked) -> Reply:
        start, most = int(asked.query["startAt"]), int(asked.query["maxResults"])
        every = sorted(self.projects.values(), key=lambda each: each["key"])
        page = every[start : start + most]
        return Reply(body={"values": page, "isLast": start + most >= len(every)})

    def _project(self, _: Asked, wanted: str) -> Reply:
        some = [each for each in self.projects.values() if wanted in {each["id"], each["key"]}]
        return Reply(body=some[0]) if some else Reply(404, {"errorMessages": ["No project"]})

    def _users(self, asked: Asked) -> Reply:
        start, most = int(asked.query["startAt"]), int(asked.query["maxResults"])
        return Reply(body=list(self.users.values())[start : start + most])

    def _user(self, asked: Asked) -> Reply:
        user = self.users.get(asked.query["accountId"])
        return Reply(body=user) if user else Reply(404, {"errorMessages": ["No user"]})

    def _time(self, moment: datetime) -> str:
        local = moment.astimezone(ZoneInfo(self.zone))
        return f"{local:%Y-%m-%dT%H:%M:%S}.{local.microsecond // 1000:03d}{local:%z}"


_ROUTES = [
    ("POST", "issue", "create"),
    ("GET", "issue/([^/]+)", "issue"),
    ("POST", "issue/([^/]+)/comment", "add_comment"),
    ("GET", "issue/([^/]+)/transitions", "offered"),
    ("POST", "issue/([^/]+)/transitions", "transition"),
    ("PUT", "issue/([^/]+)/assignee", "assign"),
    ("GET", "myself", "myself"),
    ("GET", "search", "gone"),
    ("POST", "search", "gone"),
    ("GET", "field", "field"),
    ("POST", "search/jql", "search"),
    ("POST", "issue/bulkfetch", "bulk"),
    ("GET", "issue/([^/]+)/comment", "comments"),
    ("POST", "comment/list", "comment_list"),
    ("GET", "worklog/(updated|deleted)", "worklogs_changed"),
    ("POST", "worklog/list", "worklog_list"),
    ("GET", "project/search", "project_search"),
    ("GET", "project/([^/]+)", "project"),
    ("GET", "users/search", "users"),
    ("GET", "user", "user"),
]


def document(text: str) -> dict[str, Any]:
    paragraph = {"type": "paragraph", "content": [{"type": "text", "text": text}]}
    return {"type": "doc", "version": 1, "content": [paragraph]}


def _no_issue() -> Reply:
    return Reply(404, {"errorMessages": ["Issue does not exist or you do not have permission"]})


def _bad(message: str) -> Reply:
    return Reply(400, {"errorMessages": [message], "errors": {}})


def _token(token: str | None, jql: str) -> tuple[int, int] | None:
    if token is None:
        return (-1, -1)
    place = json.loads(base64.urlsafe_b64decode(token))
    return tuple(place["behind"]) if place["jql"] == jql else None


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
