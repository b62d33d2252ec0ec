"""Actions as JSON, as existing LakeSync clients speak it: text ⇄ messages, both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.core.actions import (
    Action,
    ActionAnswers,
    ActionDescription,
    ActionOutcome,
    ActionPush,
    ActionRefused,
    checked_action,
)
from lakesync.core.delta import check_client_id
from lakesync.core.values import parse
from lakesync.errors import InvalidInput, ValidationFailed
from lakesync.wire.incoming_actions import check_count, json_text, own, refused
from lakesync.wire.json_delta import object_of, stamp_of, string_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def decode_push(body: bytes) -> ActionPush:
    """Read ``{clientId, actions[], epoch?}``.

    Raises:
        ValidationFailed: the body is not such an object; the message names the field.
    """
    fields = object_of(parse(body), "the body")
    items = fields.get("actions")
    if not isinstance(items, list):
        raise ValidationFailed("actions must be a list", field="actions")
    check_count(len(items))
    client_id = check_client_id(string_of(fields, "clientId"))
    actions = tuple(_read(item, client_id) for item in items)
    return ActionPush(client_id, actions, string_of(fields, "epoch", ""))


def _read(item: object, client_id: str) -> Action | ActionRefused:
    try:
        fields = object_of(item, "an action")
        action = Action(
            string_of(fields, "actionId"),
            string_of(fields, "clientId", client_id),
            stamp_of(fields.get("hlc", 0), "hlc"),
            string_of(fields, "connector"),
            string_of(fields, "actionType"),
            fields.get("params", {}),
            string_of(fields, "idempotencyKey", ""),
        )
        return own(checked_action(action), client_id)
    except InvalidInput as error:
        claimed = item.get("actionId") if isinstance(item, dict) else ""
        return refused(claimed if isinstance(claimed, str) else "", error)


def encode_push(push: ActionPush) -> bytes:
    """Write actions as `decode_push` reads them."""
    actions = [_action_json(action) for action in push.actions if isinstance(action, Action)]
    own = {"epoch": push.epoch} if push.epoch else {}
    return json_text({"clientId": push.client_id, "actions": actions, **own})


def _action_json(action: Action) -> dict[str, Any]:
    fields = {
        "actionId": action.action_id,
        "clientId": action.client_id,
        "hlc": str(action.hlc),
        "connector": action.connector,
        "actionType": action.action_type,
        "params": action.params,
    }
    return fields | ({"idempotencyKey": action.idempotency_key} if action.idempotency_key else {})


def encode_answers(answers: ActionAnswers) -> bytes:
    """Write ``{results[], serverHlc}``."""
    results = [outcome_fields(outcome) for outcome in answers.results]
    return json_text({"results": results, "serverHlc": str(answers.server_hlc)})


def outcome_fields(outcome: ActionOutcome) -> dict[str, Any]:
    """Return an outcome as JSON values."""
    if outcome.is_done:
        return {
            "actionId": outcome.action_id,
            "data": outcome.data,
            "serverHlc": str(outcome.server_hlc),
        }
    return {
        "actionId": outcome.action_id,
        "code": outcome.code,
        "message": outcome.message,
        "retryable": outcome.retryable,
    }


def decode_answers(body: bytes) -> ActionAnswers:
    """Read what `encode_answers` wrote.

    Raises:
        ValidationFailed: the body is not such an answer; the message names the field.
    """
    fields = object_of(parse(body), "the answer")
    results = fields.get("results")
    if not isinstance(results, list):
        raise ValidationFailed("results must be a list", field="results")
    read = tuple(outcome_of(object_of(item, "a result")) for item in results)
    return ActionAnswers(read, stamp_of(fields.get("serverHlc"), "serverHlc"))


def outcome_of(fields: Mapping[str, Any]) -> ActionOutcome:
    """Read an outcome from JSON values.

    Raises:
        ValidationFailed: a field is malformed.
    """
    action_id = string_of(fields, "actionId")
    if "code" not in fields:
        data = object_of(fields.get("data"), "data", "data")
        return ActionOutcome(action_id, data, stamp_of(fields.get("serverHlc"), "serverHlc"))
    code, message = string_of(fields, "code"), string_of(fields, "message")
    return ActionOutcome(
        action_id, code=code, message=message, retryable=fields.get("retryable") is True
    )


def encode_discovery(connectors: Mapping[str, Sequence[ActionDescription]]) -> bytes:
    """Write ``{connectors: {name: [{actionType, description, paramsSchema}]}}``."""
    listed = {
        name: [
            {
                "actionType": each.action_type,
                "description": each.description,
                "paramsSchema": each.params_schema,
            }
            for each in actions
        ]
        for name, actions in connectors.items()
    }
    return json_text({"connectors": listed})


def decode_discovery(body: bytes) -> dict[str, list[ActionDescription]]:
    """Read what `encode_discovery` wrote.

    Raises:
        ValidationFailed: the body is malformed.
    """
    listed = object_of(object_of(parse(body), "the answer").get("connectors"), "connectors")
    return {
        name: [
            ActionDescription(
                string_of(each, "actionType"),
                string_of(each, "description", ""),
                object_of(each.get("paramsSchema", {}), "paramsSchema"),
            )
            for each in actions
        ]
        for name, actions in listed.items()
    }
