"""Actions in Salesforce: create, update and upsert rows of the objects that are allowed.

Updates and upserts are idempotent. A create is idempotent if its object has a field for the run's
id, an external id: then it is an upsert by that field; otherwise its outcome cannot be determined.
"""

from __future__ import annotations

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
from lakesync.connectors.port import Settings
from lakesync.errors import ActionFailed, LakeSyncError, NotFound
from lakesync.result import Err, Ok, Result
from lakesync.systems.salesforce.salesforce_api import (
    DATA,
    FIELDS_MAX,
    ApiName,
    SalesforceApi,
    SalesforceOrg,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.connectors.port import Outside

OBJECTS_MAX: Final = 50
"""Objects that one handler changes."""
ActionName = Literal["create", "update", "upsert"]


class ChangedObject(Settings):
    """An object that actions may change."""

    name: ApiName
    actions: list[ActionName] = Field(min_length=1)
    fields: list[ApiName] | None = Field(
        None, min_length=1, max_length=FIELDS_MAX, description="Only these fields may be given."
    )
    external_id: ApiName | None = Field(
        None, description="The external id by which upsert knows its rows."
    )
    run_field: ApiName | None = Field(
        None,
        description="A unique external id of text that keeps the id of the run which created a "
        "row: a create whose answer was lost is then done once.",
    )


class SalesforceActionSettings(SalesforceOrg):
    """A Salesforce organisation in which actions are done."""

    objects: list[ChangedObject] = Field(min_length=1, max_length=OBJECTS_MAX)


class SalesforceActions:
    """`lakesync.actions.ActionHandler` of a Salesforce organisation."""

    def __init__(self, settings: SalesforceActionSettings, outside: Outside) -> None:
        self._objects = {each.name: each for each in settings.objects}
        self._api = SalesforceApi(settings, outside)

    def supported_actions(self) -> list[SupportedAction]:
        offered = []
        for name, text, key in _ACTIONS:
            objects = [each.name for each in self._objects.values() if name in each.actions]
            if objects:
                offered.append(SupportedAction(name, text, _params(objects, key)))
        return offered

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
        self._api.caller.answer_s_max = min(ANSWER_S_MAX, max(run.seconds / 2, 1))
        return done(lambda: self._done(run))

    def lookup(self, run: Run) -> Result[Looked, LakeSyncError]:
        """Search for the row that a run created; other actions are idempotent."""
        if run.action != "create":
            return Ok(NOT_DONE)
        changed = self._objects.get(run.params["object"])
        if changed is None or changed.run_field is None:
            return Ok(UNKNOWN)
        try:
            row = self._api.send("GET", _path(changed, changed.run_field, run.run_id)).json()
        except NotFound:
            return Ok(NOT_DONE)  # done again, it is an upsert
        except LakeSyncError as error:
            return Err(meaning(error))
        return Ok(Done({"id": row["Id"]}))

    def close(self) -> None:
        self._api.close()

    def _done(self, run: Run) -> Mapping[str, Any]:
        changed, fields = self._allowed(run)
        method, path = "PATCH", ""
        if run.action == "update":
            path = _path(changed, run.params["id"])
        elif run.action == "upsert" and changed.external_id:
            path = _path(changed, changed.external_id, run.params["externalId"])
        elif run.action == "create" and changed.run_field:
            path = _path(changed, changed.run_field, run.run_id)
        elif run.action == "create":
            method, path = "POST", _path(changed)
        else:
            raise ActionFailed(f"{changed.name} has no external id here to upsert by")
        self._api.log_in_if_needed()
        answer = written(lambda: self._api.send(method, path, body=fields).json()) or {}
        return {"id": answer.get("id", run.params.get("id")), "created": _created(run, answer)}

    def _allowed(self, run: Run) -> tuple[ChangedObject, Mapping[str, Any]]:
        """Return the object and the values to change; what is not allowed is refused."""
        changed = self._objects[run.params["object"]]
        if run.action not in changed.actions:
            raise ActionFailed(f"{run.action} is not allowed for {changed.name}")
        fields: Mapping[str, Any] = run.params["fields"]
        own = {changed.run_field, changed.external_id if run.action == "upsert" else None, "Id"}
        refused = [
            name for name in fields
            if name in own or (changed.fields is not None and name not in changed.fields)
        ]  # fmt: skip
        if refused:
            raise ActionFailed(
                f"of {changed.name} these fields may not be given: {', '.join(refused)}"
            )
        return changed, fields


def _created(run: Run, answer: Mapping[str, Any]) -> bool:
    return bool(answer.get("created", run.action == "create"))


def _path(changed: ChangedObject, *parts: str) -> str:
    return "/".join((f"{DATA}/sobjects/{changed.name}", *(quote(each, safe="") for each in parts)))


_ACTIONS: Final[tuple[tuple[ActionName, str, Mapping[str, Any]], ...]] = (
    ("create", "Creates a row.", {}),
    ("update", "Changes a row.", {"id": {"type": "string", "pattern": "^[A-Za-z0-9]{15,18}$"}}),
    (
        "upsert", "Changes the row that has an external id, or creates it.",
        {"externalId": {"type": "string", "minLength": 1, "maxLength": 255}},
    ),
)  # fmt: skip


def _params(objects: list[str], key: Mapping[str, Any]) -> dict[str, Any]:
    scalar = {"type": ["string", "number", "boolean", "null"]}
    fields = {
        "type": "object", "minProperties": 1, "maxProperties": FIELDS_MAX,
        "propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_]{0,79}$"},
        "additionalProperties": scalar,
    }  # fmt: skip
    return {
        "type": "object", "required": ["object", *key, "fields"], "additionalProperties": False,
        "properties": {"object": {"enum": objects}, **key, "fields": fields},
    }  # fmt: skip


SALESFORCE: Final = HandlerType(
    "salesforce", "Salesforce", SalesforceActionSettings, SalesforceActions
)
