"""One message of each kind, whose bytes are kept in ``tests/golden/wire.json``.

Kept bytes never change: clients and stores of past releases hold them. For a new kind of message,
add it here and run ``python -m tests.support.golden``, which writes only what is missing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lakesync.core.merge import fold
from lakesync.core.messages import DeltaOutcome, OutcomeKind, Pull, PullPage, PushReceipt
from lakesync.errors import RowTooLarge
from lakesync.wire import jsonish, proto
from lakesync.wire.records import encode_records, encode_row_state
from tests.support.builders import at_ms, delete, insert, push, update

if TYPE_CHECKING:
    from collections.abc import Mapping

PATH = Path(__file__).parents[1] / "golden" / "wire.json"

DELTAS = (
    insert(at=at_ms(0), title="Buy milk", done=False, rank=1.5),
    update(at=at_ms(1, 65535), client="téléphone 📱", title=None, tags=["a", {"k": 1}]),
    delete("r/2", at=at_ms(2)),
)
OWN_PUSH = push(*DELTAS, seen=at_ms(-1), atomic=True)
OWN_PULL = Pull("c1", at_ms(0), 1_000, "epoch-1")
PUSH = replace(OWN_PUSH, own_cursor=False)
PULL = replace(OWN_PULL, own_cursor=False)
PAGE = PullPage(
    (encode_records(DELTAS[:2]), encode_records(DELTAS[2:])), 3, at_ms(9), has_more=True, epoch="e"
)
RECEIPT = PushReceipt(
    at_ms(9),
    2,
    (
        DeltaOutcome(0, DELTAS[0].delta_id, OutcomeKind.DUPLICATE),
        DeltaOutcome(
            2,
            DELTAS[2].delta_id,
            OutcomeKind.REFUSED,
            RowTooLarge("the row would hold 400,001 bytes", field="deltas[2]"),
        ),
    ),
    1_700_000_000_123,
)
ROW = fold(DELTAS[:2])


def messages() -> Mapping[str, bytes]:
    return {
        "push, JSON": jsonish.encode_push(PUSH),
        "push, protobuf": proto.encode_push(PUSH),
        "receipt, JSON": jsonish.encode_receipt(RECEIPT),
        "receipt, protobuf": proto.encode_receipt(RECEIPT),
        "pull, protobuf": proto.encode_pull(PULL),
        "push of its own cursor, JSON": jsonish.encode_push(OWN_PUSH),
        "push of its own cursor, protobuf": proto.encode_push(OWN_PUSH),
        "pull of its own cursor, protobuf": proto.encode_pull(OWN_PULL),
        "page, JSON": jsonish.encode_page(PAGE),
        "page, protobuf": proto.encode_page(PAGE),
        "run of deltas, stored": encode_records(DELTAS),
        "row state, stored": encode_row_state(ROW),
    }


def kept() -> dict[str, bytes]:
    """Return the kept bytes: text as it is, protobuf from hex."""
    kept: dict[str, str] = json.loads(PATH.read_text("utf-8")) if PATH.exists() else {}
    return {
        name: text.encode() if name.endswith("JSON") else bytes.fromhex(text)
        for name, text in kept.items()
    }


if __name__ == "__main__":
    every = {**messages(), **kept()}
    texts = {
        name: body.decode() if name.endswith("JSON") else body.hex() for name, body in every.items()
    }
    PATH.write_text(json.dumps(texts, indent=2, ensure_ascii=False) + "\n", "utf-8")
