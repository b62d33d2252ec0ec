"""Webhooks of Jira Cloud: an issue was created, changed or deleted.

Only the issue's id is taken from an event; the issue itself is read by the API, as events represent
fields differently. So a webhook and a poll give the same row with the same time: a duplicate.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.jira import issues
from lakesync.connectors.jira.columns import ISSUE_FIELDS
from lakesync.connectors.jira.walk import Walk
from lakesync.connectors.port import Change, SourcePage, Unreadable
from lakesync.connectors.signatures import Signed, check_hub_signature
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.connectors.jira.api import JiraApi
    from lakesync.connectors.jira.columns import Field
    from lakesync.connectors.jira.configuration import JiraSettings
    from lakesync.connectors.port import Delivery
    from lakesync.connectors.storage import Storage

REPEATED_S_MAX: Final = 7_200
"""The oldest accepted signature of an event: Jira repeats an undelivered event unchanged up to five
times, each up to 15 minutes later."""
DELETED: Final = "jira:issue_deleted"
_CHANGED: Final = ("jira:issue_created", "jira:issue_updated")
_NOTHING: Final = SourcePage((), "", has_more=False)


def verified(secret: str, headers: Mapping[str, str], body: bytes) -> Signed:
    """Verify an event; its time is part of its body.

    Raises:
        AuthFailed: it is not signed with the secret.
        ValidationFailed: it is not an event of Jira.
    """
    delivery = check_hub_signature(secret, headers, body)
    sent_ms = _event(body).get("timestamp")
    if type(sent_ms) is not int:
        raise ValidationFailed("an event of Jira has a timestamp", field="timestamp")
    return Signed(delivery, sent_ms)


def read(
    api: JiraApi,
    settings: JiraSettings,
    storage: Storage,
    custom: Callable[[], Sequence[Field]],
    delivery: Delivery,
) -> SourcePage:
    """Return the issue of an event; nothing for events that are not about issues.

    Raises:
        ValidationFailed: it names no issue.
    """
    event = _event(delivery.body)
    kind = event.get("webhookEvent")
    if kind not in {DELETED, *_CHANGED} or issues.TABLE not in settings.named():
        return _NOTHING
    row_id, key = _named(event)
    if kind == DELETED:
        wanted = not settings.projects or key.rpartition("-")[0] in settings.projects
        gone = Change(row_id, None, 1000 * delivery.sent_ms, issues.TABLE)
        return SourcePage((gone,) if wanted else (), "", has_more=False)
    fields = (*ISSUE_FIELDS, *custom())
    walk = Walk(api, settings, storage, issues.TABLE)
    there = walk.within(api.by_ids([row_id], [field.id for field in fields]))
    if there:
        walk.given.note_by_webhook(row_id)
    changes, unreadable = issues.changes_of(there, fields)
    return SourcePage(
        tuple(each._replace(table=issues.TABLE) for each in changes),
        "",
        has_more=False,
        unreadable=tuple(Unreadable(each.row_id, each.reason, issues.TABLE) for each in unreadable),
    )


def _event(body: bytes) -> dict[str, Any]:
    try:
        event = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise ValidationFailed("an event of Jira is JSON") from exc
    if not isinstance(event, dict):
        raise ValidationFailed("an event of Jira is an object")
    return event


def _named(event: Mapping[str, Any]) -> tuple[str, str]:
    issue = event.get("issue")
    row_id, key = (issue.get("id"), issue.get("key")) if isinstance(issue, dict) else (None, None)
    if not (isinstance(row_id, str | int) and str(row_id).isdecimal() and isinstance(key, str)):
        raise ValidationFailed("an event of an issue has its id and its key", field="issue")
    return str(row_id), key
