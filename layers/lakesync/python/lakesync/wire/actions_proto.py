"""Actions as protobuf: what a gateway reads and writes; our own client speaks JSON here."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from lakesync.core.actions import Action, ActionAnswers, ActionPush, ActionRefused, checked_action
from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import check_client_id
from lakesync.core.values import parse
from lakesync.errors import ActionInvalid, InvalidInput, ValidationFailed
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.incoming_actions import check_count, json_text, own, refused


def decode_push(body: bytes) -> ActionPush:
    """Read an ``ActionPush``.

    Raises:
        ValidationFailed: the bytes are malformed.
    """
    try:
        message = pb.ActionPush.FromString(body)
    except DecodeError as exc:
        raise ValidationFailed(f"the body is not an ActionPush message: {exc}") from exc
    check_count(len(message.actions))
    client_id = check_client_id(message.client_id)
    actions = tuple(_read(item, client_id) for item in message.actions)
    return ActionPush(client_id, actions, message.epoch)


def _read(item: pb.Action, client_id: str) -> Action | ActionRefused:
    try:
        if item.hlc > STAMP_MAX:
            raise ActionInvalid("hlc must be at most 2^63-1", field="hlc")
        action = Action(
            item.action_id,
            item.client_id or client_id,
            item.hlc,
            item.connector,
            item.action_type,
            parse(item.params) if item.params else {},
            item.idempotency_key,
        )
        return own(checked_action(action), client_id)
    except InvalidInput as error:
        return refused(item.action_id, error)


def encode_answers(answers: ActionAnswers) -> bytes:
    """Write an ``ActionResponse``."""
    message = pb.ActionResponse(server_hlc=answers.server_hlc)
    for outcome in answers.results:
        result = message.results.add()
        if outcome.is_done:
            result.success.action_id = outcome.action_id
            result.success.data = json_text(outcome.data)
            result.success.server_hlc = outcome.server_hlc
        else:
            result.error.action_id = outcome.action_id
            result.error.code = outcome.code
            result.error.message = outcome.message
            result.error.retryable = outcome.retryable
    return message.SerializeToString()
