"""Vectors of messages: each as JSON, as protobuf, and as the frames of WebSockets that carry it.

The JSON is what the message says; a client in any language needs one of the encodings only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import Op, make_delta, removal
from lakesync.core.messages import (
    DeltaOutcome,
    OutcomeKind,
    Progress,
    PullPage,
    Push,
    PushReceipt,
    Resync,
)
from lakesync.errors import BY_CODE
from lakesync.wire import json_frames, jsonish, proto
from lakesync.wire.proto import Tag
from lakesync.wire.records import encode_records
from tests.support.vectors.case import CLIENTS, NAMES, Chance, Subject, base64_of, case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.core.delta import Delta
    from lakesync.errors import LakeSyncError
    from tests.support.vectors.case import Case

PUSHES: Final = 40
RECEIPTS: Final = 30
PAGES: Final = 45
BROADCASTS: Final = 15
REFUSALS: Final = 20
CODES: Final = (
    "VALIDATION_ERROR", "SCHEMA_ERROR", "CLOCK_DRIFT", "FORBIDDEN", "ROW_TOO_LARGE", "RATE_LIMITED",
    "OUT_OF_ORDER", "ROW_DELETED", "NAME_TAKEN", "ANOTHER_GATEWAY", "CURSOR_EXPIRED", "AUTH_ERROR",
)  # fmt: skip


def _cases() -> Iterator[Case]:
    yield from map(_push, range(PUSHES))
    yield from map(_receipt, range(RECEIPTS))
    yield from map(_page, range(PAGES))
    yield from map(_broadcast, range(BROADCASTS))
    yield from map(_refusal, range(REFUSALS))


def _push(number: int) -> Case:
    chance = Chance(f"push {number}")
    client = chance.one_of(CLIENTS)
    deltas = [_delta(chance, client) for _ in range(chance.below(4))]
    push = Push(
        client,
        tuple(enumerate(deltas)),
        chance.one_of((0, 1, chance.stamp())),
        atomic=chance.is_lucky(2),
        epoch=chance.one_of((None, "", "epoch-1")),
    )
    request_id, body = 1 + number, jsonish.encode_push(push)
    given = {"message": "push", "json": body.decode(), "requestId": request_id}
    return case(
        "W1 W8",
        given,
        {
            "protobuf": base64_of(proto.encode_push(push)),
            "frame": proto.encode_push_frame(push, request_id),
            "jsonFrame": json_frames.encode_frame(Tag.PUSH, body, request_id),
        },
    )


def _receipt(number: int) -> Case:
    chance = Chance(f"receipt {number}")
    outcomes = tuple(
        DeltaOutcome(place, f"{chance.below(2**48):064x}", *_outcome(chance))
        for place in chance.some_of(range(6), 4)
    )
    receipt = PushReceipt(
        chance.stamp(), chance.below(100), outcomes, chance.below(2**52), chance.one_of(("", "e-1"))
    )
    given = {"message": "receipt", "protobuf": base64_of(proto.encode_receipt(receipt))}
    frames = {
        "frame": proto.encode_receipt_frame(receipt, number + 1),
        "jsonFrame": json_frames.encode_receipt_frame(receipt, number + 1),
    }
    expect = {"json": jsonish.encode_receipt(receipt).decode(), "requestId": number + 1}
    return case("W1 W8", given | frames, expect)


def _outcome(chance: Chance) -> tuple[OutcomeKind, LakeSyncError | None]:
    if chance.is_lucky(3):
        return OutcomeKind.DUPLICATE, None
    error = BY_CODE[chance.one_of(CODES)](
        chance.text() or "no", field=chance.one_of((None, "columns.title"))
    )
    return OutcomeKind.REFUSED, error


def _page(number: int) -> Case:
    page = _some_page(Chance(f"page {number}"))
    given = {"message": "page", "protobuf": base64_of(proto.encode_page(page))}
    frames = {
        "frame": proto.encode_page_frame(page, number + 1),
        "jsonFrame": json_frames.encode_page_frame(page, number + 1),
    }
    expect = {"json": jsonish.encode_page(page).decode(), "requestId": number + 1}
    return case("W1 W5 W8", given | frames, expect)


def _some_page(chance: Chance) -> PullPage:
    commits = [
        [_delta(chance, chance.one_of(CLIENTS)) for _ in range(1 + chance.below(3))]
        for _ in range(chance.below(4))
    ]
    if chance.is_lucky(4):
        commits.append([removal("todos", chance.text() or "r1", chance.stamp())])
    return PullPage(
        tuple(map(encode_records, commits)),
        sum(map(len, commits)),
        chance.one_of((0, STAMP_MAX, chance.stamp())),
        chance.is_lucky(2),
        chance.one_of(("", "epoch-1")),
        chance.one_of(("", "", "7f|all|todos|r1")),
        chance.one_of(("", "*", "-", "_", "*~todos.abc")),
        _resync(chance) if chance.is_lucky(3) else None,
        chance.one_of((0, 7)),
        chance.one_of((0, 1_500)),
        progress=Progress(3, 10) if chance.is_lucky(4) else None,
    )


def _broadcast(number: int) -> Case:
    chance = Chance(f"broadcast {number}")
    cursor = chance.one_of((STAMP_MAX, chance.stamp()))
    page = PullPage((), 0, cursor, has_more=True, epoch="epoch-1", scope="*")
    if not chance.is_lucky(4):
        deltas = [_delta(chance, chance.one_of(CLIENTS)) for _ in range(1 + chance.below(3))]
        first = chance.one_of((1, cursor))
        page = replace(
            page,
            records=(encode_records(deltas),),
            count=len(deltas),
            has_more=False,
            first=first,
            previous=chance.one_of((0, first - 1)),
        )
    given = {"message": "broadcast", "protobuf": base64_of(proto.encode_page(page))}
    frames = {
        "frame": proto.encode_broadcast(page),
        "jsonFrame": json_frames.encode_broadcast(page),
    }
    return case("W1 W8 T1", given | frames, {"json": jsonish.encode_page(page).decode()})


def _resync(chance: Chance) -> Resync:
    tables = tuple(chance.some_of(("todos", "lists", "Users"), 2))
    named = chance.one_of((None, (), ("lists",)))
    horizons = {"todos": chance.stamp()} if chance.is_lucky(2) else {}
    omitted = dict.fromkeys(tables[:1], ("salary", "title")) if chance.is_lucky(2) else {}
    return Resync(tables, named, horizons, omitted)


def _refusal(number: int) -> Case:
    chance = Chance(f"refusal {number}")
    code = chance.one_of(CODES)
    error = BY_CODE[code](
        chance.text() or "no",
        field=chance.one_of((None, "deltas[2]")),
        retry_after_s=chance.one_of((None, 3)),
    )
    closes = chance.is_lucky(2)
    given = {
        "message": "refusal",
        "frame": proto.encode_refusal(error, number, closes=closes),
        "jsonFrame": json_frames.encode_refusal(error, number, closes=closes),
    }
    read = proto.decode_refusal(proto.decode_frame(given["frame"])[1])
    expect = {
        "requestId": number,
        "code": code,
        "error": read.error.message,
        "field": read.error.field,
        "retryAfterS": read.error.retry_after_s,
        "closes": closes,
    }
    return case("W8", given, expect)


def _delta(chance: Chance, client: str) -> Delta:
    op = chance.one_of((Op.INSERT, Op.UPDATE, Op.DELETE))
    names = {name.lower(): name for name in chance.some_of(NAMES, 3)}.values()
    columns = {} if op is Op.DELETE else {name: chance.value() for name in names}
    table, row = chance.one_of(("todos", "Lists")), chance.text() or "r1"
    return make_delta(op, table, row, columns, client_id=client, hlc=chance.stamp())


SUBJECT: Final = Subject(
    "Messages in both encodings, and the frames that carry them over a WebSocket.",
    {
        "message": "push: to be written; receipt, page, broadcast, refusal: to be read",
        "json": "of a push: what is pushed",
        "requestId": "the id that a request over a WebSocket carries",
        "protobuf": "of a receipt, a page or a broadcast: the bytes",
        "frame": "and the text of the frame that carries them",
        "jsonFrame": "and the frame of `lakesync.v1.json`",
    },
    {
        "protobuf": "of a push: a message that says the same; bytes may differ",
        "frame": "of a push: a frame that says the same",
        "jsonFrame": "and one of `lakesync.v1.json`",
        "json": "of a receipt, a page or a broadcast: the same message as JSON",
        "requestId": "of which request the frame is the answer; a broadcast answers none",
        "code": "of a refusal; `error`, `field`, `retryAfterS` and `closes` too",
    },
    _cases,
)
