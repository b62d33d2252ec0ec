"""Actions in Jira Cloud: create an issue, comment on one, change its status, assign it.

A run can be recognised afterwards: a created issue has a label of its run, a comment a property.
Changing an issue's status and assigning it are idempotent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from pydantic import Field

from lakesync.actions.declared_actions import done, meaning, written
from lakesync.actions.engine import (
    NOT_DONE,
    UNKNOWN,
    Done,
    HandlerType,
    Looked,
    Run,
    SupportedAction,
)
from lakesync.connectors.http import ANSWER_S_MAX
from lakesync.errors import ActionFailed, LakeSyncError
from lakesync.result import Err, Ok, Result
from lakesync.systems.jira.jira_api import COMMENTS_MAX, PROJECTS_MAX, JiraApi, JiraSite, ProjectKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.connectors.port import Outside

LOOKS_MAX: Final = 3
"""How often a lost run is searched for: Jira's search shows new issues after a moment."""
LOOK_S: Final = 1.0
"""How long to wait between two searches; what Jira does after the last one is not noticed."""
TEXT_CHARS_MAX: Final = 32_767
"""A text of Jira: its own limit."""
_API: Final = "/rest/api/3/issue"
_PROPERTY: Final = "lakesync"
_ISSUE: Final = {"type": "string", "pattern": "^([A-Z][A-Z0-9_]+-[0-9]+|[0-9]+)$", "maxLength": 300}
_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": TEXT_CHARS_MAX}
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 255}
ActionName = Literal["create", "comment", "transition", "assign"]


def _all_actions() -> list[ActionName]:
    return ["create", "comment", "transition", "assign"]


class JiraActionSettings(JiraSite):
    """A Jira Cloud site in which actions are done."""

    actions: list[ActionName] = Field(default_factory=_all_actions, min_length=1)
    projects: list[ProjectKey] = Field(
        default_factory=list, max_length=PROJECTS_MAX,
        description="Keys of the projects in which actions are done; none: all.",
    )  # fmt: skip


class JiraActions:
    """`lakesync.actions.ActionHandler` of a Jira Cloud site."""

    def __init__(
        self,
        settings: JiraActionSettings,
        outside: Outside,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._outside = outside
        self._sleep = sleep
        self._api = JiraApi(settings, outside)

    def supported_actions(self) -> list[SupportedAction]:
        return [
            SupportedAction(name, text, _params(self._settings, required, properties))
            for name, text, required, properties in _ACTIONS
            if name in self._settings.actions
        ]

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
        # Part of the time is for checking whether it was done, and the state of the issue.
        self._api.caller.answer_s_max = min(ANSWER_S_MAX, max(run.seconds / 2, 1))
        work: Mapping[str, Callable[[Run], Mapping[str, Any]]] = {
            "create": self._create, "comment": self._comment,
            "transition": self._transition, "assign": self._assign,
        }  # fmt: skip
        return done(lambda: work[run.action](run))

    def lookup(self, run: Run) -> Result[Looked, LakeSyncError]:
        if run.action in {"transition", "assign"}:
            return Ok(NOT_DONE)  # done again it does nothing
        look = self._created if run.action == "create" else self._commented
        try:
            for number in range(LOOKS_MAX):
                if number:
                    self._sleep(LOOK_S)
                result = look(run)
                if result is not None:
                    return Ok(Done(result))
        except LakeSyncError as error:
            return Err(meaning(error))
        # The search may be later still; the comments of an issue are as they are.
        return Ok(UNKNOWN if run.action == "create" else NOT_DONE)

    def close(self) -> None:
        self._api.close()

    def _create(self, run: Run) -> Mapping[str, Any]:
        params = run.params
        fields = {
            **params.get("fields", {}),
            "project": {"key": params["project"]},
            "issuetype": {"name": params["issueType"]},
            "summary": params["summary"],
            "labels": [*params.get("labels", []), _label(run)],
        }
        if "description" in params:
            fields["description"] = _document(params["description"])
        created = written(lambda: self._api.caller.post(_API, {"fields": fields}))
        return {"id": created["id"], "key": created["key"]}

    def _comment(self, run: Run) -> Mapping[str, Any]:
        path = self._path(run, "comment")
        body = {
            "body": _document(run.params["body"]),
            "properties": [{"key": _PROPERTY, "value": {"run": run.run_id}}],
        }
        return {"id": written(lambda: self._api.caller.post(path, body))["id"]}

    def _transition(self, run: Run) -> Mapping[str, Any]:
        wanted = run.params["to"]
        status = self._api.caller.get(self._path(run), fields="status")["fields"]["status"]["name"]
        if status.casefold() == wanted.casefold():
            return {"status": status, "changed": False}
        path = self._path(run, "transitions")
        offered = self._api.caller.get(path)["transitions"]
        chosen = next(
            (each for each in offered if each["to"]["name"].casefold() == wanted.casefold()), None
        )
        if chosen is None:
            names = ", ".join(dict.fromkeys(each["to"]["name"] for each in offered)) or "nowhere"
            raise ActionFailed(f"from {status} the issue can go to {names}, not to {wanted}")
        written(lambda: self._api.caller.post(path, {"transition": {"id": chosen["id"]}}))
        return {"status": chosen["to"]["name"], "changed": True}

    def _assign(self, run: Run) -> Mapping[str, Any]:
        path, body = self._path(run, "assignee"), {"accountId": run.params["accountId"]}
        written(lambda: self._api.caller.send("PUT", path, body=body))
        return {"accountId": run.params["accountId"]}

    def _created(self, run: Run) -> Mapping[str, Any] | None:
        issues = self._api.search(f'labels = "{_label(run)}"', ["id", "key"], 2).issues
        return {"id": issues[0]["id"], "key": issues[0]["key"]} if issues else None

    def _commented(self, run: Run) -> Mapping[str, Any] | None:
        newest = self._api.caller.get(
            self._path(run, "comment"),
            orderBy="-created", maxResults=COMMENTS_MAX, expand="properties",
        )  # fmt: skip
        wanted = {"key": _PROPERTY, "value": {"run": run.run_id}}
        for comment in newest.get("comments", []):
            if wanted in [
                {"key": each.get("key"), "value": each.get("value")}
                for each in comment.get("properties", [])
            ]:
                return {"id": comment["id"]}
        return None

    def _path(self, run: Run, *parts: str) -> str:
        issue = run.params["issue"]
        wanted = self._settings.projects
        if wanted and issue.partition("-")[0] not in wanted:
            raise ActionFailed(f"the operator allows issues of {', '.join(wanted)} by their keys")
        return "/".join((_API, quote(issue, safe=""), *parts))


def _label(run: Run) -> str:
    return f"lakesync-{run.run_id}"


def _document(text: str) -> dict[str, Any]:
    """Return text as Atlassian's document, a paragraph for each line."""
    lines = [
        {"type": "paragraph", "content": [{"type": "text", "text": line}] if line else []}
        for line in text.splitlines()
    ]
    return {"type": "doc", "version": 1, "content": lines}


_ACTIONS: Final[tuple[tuple[ActionName, str, list[str], dict[str, Any]], ...]] = (
    (
        "create", "Creates an issue.", ["project", "issueType", "summary"],
        {
            "project": {"type": "string", "pattern": "^[A-Z][A-Z0-9_]+$"},
            "issueType": _NAME,
            "summary": {"type": "string", "minLength": 1, "maxLength": 255},
            "description": _TEXT,
            "labels": {"type": "array", "items": {"type": "string", "pattern": "^\\S+$"}},
            "fields": {"type": "object", "description": "Other fields, by Jira's ids."},
        },
    ),
    ("comment", "Comments on an issue.", ["issue", "body"], {"issue": _ISSUE, "body": _TEXT}),
    (
        "transition", "Brings an issue into a status.", ["issue", "to"],
        {"issue": _ISSUE, "to": {**_NAME, "description": "The status that it gets."}},
    ),
    (
        "assign", "Assigns an issue to somebody, or to nobody.", ["issue", "accountId"],
        {"issue": _ISSUE, "accountId": {"type": ["string", "null"], "maxLength": 128}},
    ),
)  # fmt: skip


def _params(
    settings: JiraActionSettings, required: list[str], properties: Mapping[str, Any]
) -> dict[str, Any]:
    known = dict(properties)
    if "project" in known and settings.projects:
        known["project"] = {"enum": list(settings.projects)}
    return {
        "type": "object", "required": required, "properties": known, "additionalProperties": False,
    }  # fmt: skip


JIRA: Final = HandlerType("jira", "Jira Cloud", JiraActionSettings, JiraActions)
