"""What the simulation answers for a conflict is what DynamoDB's buffer makes of one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.core.config import GatewayConfig
from lakesync.core.layout import ONE_LANE
from tests.simulation.ports import CONFLICTS
from tests.support.commits import Writer
from tests.support.modelled import LockedModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.ports import Commit, Head

GATEWAY = "g"
TRANSACTIONS = ("TransactWriteItems", "TransactGetItems")
SINGLE = ("UpdateItem", "DeleteItem")


class Conflicting(LockedModel):
    """The model of DynamoDB; once ``place`` is set, another transaction is at an item.

    That is the one at that place of a transaction, or the only one of a single write.
    """

    place: int | None = None

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        operation = headers["X-Amz-Target"].partition(".")[2]
        if self.place is None or operation not in (*TRANSACTIONS, *SINGLE):
            return super().__call__(headers, body)
        if operation in SINGLE:
            return 400, json.dumps({"__type": "x#TransactionConflictException"}).encode()
        reasons = [{"Code": "None"} for _ in json.loads(body)["TransactItems"]]
        reasons[self.place]["Code"] = "TransactionConflict"
        refused = {"__type": "x#TransactionCanceledException", "CancellationReasons": reasons}
        return 400, json.dumps(refused).encode()


def calls(buffer: DynamoBuffer, head: Head, commit: Commit) -> dict[str, Callable[[], Any]]:
    """Return each call of an item that transactions write to, by name."""
    to, opened = head.commit + 9, ONE_LANE.opening("main", 2)
    return {
        "commit": lambda: buffer.commit(commit),
        "save_config": lambda: buffer.save_config(
            GATEWAY, GatewayConfig(version=1), head, ONE_LANE, to
        ),
        "read_marks_serializable": lambda: buffer.read_marks_serializable(
            GATEWAY, [("main", "c1")]
        ),
        "raise_horizon": lambda: buffer.raise_horizon(GATEWAY, to),
        "begin_epoch": lambda: buffer.begin_epoch(GATEWAY, head, ONE_LANE, to, 1, "e"),
        "raise_head": lambda: buffer.raise_head(GATEWAY, "main", head, to, head),
        "change_lanes": lambda: buffer.change_lanes(GATEWAY, head, opened, to),
        "close_lane": lambda: buffer.close_lane(GATEWAY, "main", head, to),
        "empty_head": lambda: buffer.empty_head(GATEWAY, "main", head),
        "forget_row": lambda: buffer.forget_row(GATEWAY, "todos", "r", head.commit),
        "note_flushed": lambda: buffer.note_flushed(GATEWAY, "main", to, head.logged_bytes),
    }


@pytest.mark.parametrize("name", CONFLICTS)
def test_simulated_conflict_is_answered_as_by_the_dynamodb_buffer(name: str) -> None:
    model = Conflicting()
    caller = DynamoCaller("us-east-1", credentials=lambda: ("key", "secret", None), send=model)
    buffer = DynamoBuffer("lakesync-buffer", caller, sleep_s=lambda _: None)
    writer = Writer(buffer, GATEWAY)
    writer.write(rows={("todos", "r"): b"state"}, in_head=True)
    (head,) = buffer.all_heads(GATEWAY).values()
    call = calls(buffer, head, writer.prepare(rows={("todos", "r"): b"new"}, in_head=True))[name]
    expected = CONFLICTS[name]
    raised = expected if isinstance(expected, list) else [expected]

    for model.place in (0, -1) if len(raised) > 1 else (0,):
        if isinstance(raised[model.place], type):
            with pytest.raises(raised[model.place]):
                call()
        else:
            assert call() is expected

    model.place = None
    assert buffer.all_heads(GATEWAY) == {"main": head}
    assert buffer.rows(GATEWAY, [("todos", "r")])["todos", "r"].state == b"state"
    call()  # it was the conflict that stood in the way
