"""How a client and the gateway speak: protobuf or JSON, by the real encoders."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.messages import DeltaOutcome, OutcomeKind, PushReceipt
from lakesync.errors import BY_CODE, InternalError
from lakesync.wire import jsonish, proto

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.messages import PullPage, Push


class Speech(NamedTuple):
    encode_push: Callable[[Push], bytes]
    decode_push: Callable[[bytes], Push]
    encode_receipt: Callable[[PushReceipt], bytes]
    decode_receipt: Callable[[bytes], PushReceipt]
    encode_page: Callable[[PullPage], bytes]
    decode_page: Callable[[bytes], PullPage]


def receipt_of_json(body: bytes) -> PushReceipt:
    fields = json.loads(body)
    outcomes = []
    for item in fields["results"]:
        kind = BY_CODE.get(item["code"], InternalError) if "code" in item else None
        error = kind(item["error"], field=item.get("field")) if kind else None
        outcomes.append(
            DeltaOutcome(item["index"], item["deltaId"], OutcomeKind(item["outcome"]), error)
        )
    return PushReceipt(
        int(fields["serverHlc"]),
        fields["accepted"],
        tuple(outcomes),
        fields["serverTimeMs"],
        fields.get("epoch", ""),
    )


PROTOBUF: Final = Speech(
    proto.encode_push,
    proto.decode_push,
    proto.encode_receipt,
    proto.decode_receipt,
    proto.encode_page,
    proto.decode_page,
)
JSON: Final = Speech(
    jsonish.encode_push,
    jsonish.decode_push,
    jsonish.encode_receipt,
    receipt_of_json,
    jsonish.encode_page,
    jsonish.decode_page,
)
