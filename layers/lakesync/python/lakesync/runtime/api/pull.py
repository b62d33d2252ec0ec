"""Routes by which a client fetches rows: pulls, checkpoints, and tickets for WebSockets.

``/sync/{gateway}/pull``, by GET or POST; ``GET /sync/{gateway}/checkpoint``, all rows at once or
part by part; ``POST /sync/{gateway}/ticket``, for a client that cannot send a token.

Pulls from a source are answered by ``functions/pull_source``, which has the databases' drivers. API
Gateway routes by path, and a source is named in the query. So ``functions/pull`` passes on the
whole event, including the authoriser's answer, and needs none of the other function's permissions.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import parse_qs

from starlette.responses import Response

from lakesync.core.clock import STAMP_MAX
from lakesync.core.gateway_identity import EPOCH_LENGTH_MAX
from lakesync.core.messages import PLACES_CHARS_MAX, QUARANTINED_MAX, Pull
from lakesync.core.visibility import SCOPE_CHARS_MAX
from lakesync.errors import NotFound, SourceUnavailable
from lakesync.log.lanes import DEFAULT_LIMITS
from lakesync.runtime import api, http, observe
from lakesync.runtime.api import (
    CHECKPOINT_FORM,
    STAMP_FORM,
    TABLE_FORM,
    ClientId,
    Gateway,
    Query,
    Router,
    guarded_router,
)
from lakesync.runtime.auth import Caller, noted
from lakesync.runtime.http import (
    ANSWER_BYTES_MAX,
    NOT_CACHED,
    Encoding,
    answer,
    answer_encoding,
    answer_json,
    body_of,
    error_answer,
    request_encoding,
    request_id,
)
from lakesync.runtime.websockets import TICKET_S_MAX
from lakesync.wire import jsonish, proto

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from lakesync.compat.follower_pulls import CheckpointFrames, CheckpointService, FollowingPulls
    from lakesync.core.messages import PullPage
    from lakesync.delivery.source_pull import SourcePulls
    from lakesync.gateway.pull import PullService
    from lakesync.runtime.observe import Invoke
    from lakesync.runtime.websockets import SocketTickets

    Handler = Callable[[dict[str, Any], Any], dict[str, Any]]

# --- pulls ----------------------------------------------------------------------------------------


DELTAS_DEFAULT: Final = 100
_REST_BYTES: Final = 5_000
"""What a page says beside its deltas: its scope, mostly."""
_SOURCE_LENGTH_MAX: Final = 64
PULL_BODY_BYTES_MAX: Final = 32 * 1024
"""A position with its scope fits several times."""
_DECODE: Final = {Encoding.JSON: jsonish.decode_pull, Encoding.PROTOBUF: proto.decode_pull}
_ENCODE: Final = {Encoding.JSON: jsonish.encode_page, Encoding.PROTOBUF: proto.encode_page}

_MEANS: Final = "Whole commits, and the next cursor."
_ANSWERS: Final = api.answers("PullPage", _MEANS, 404, 409, 410, 502, 503, protobuf=True)
_POST_ANSWERS: Final = api.answers("PullPage", _MEANS, 404, 409, 410, 413, 502, 503, protobuf=True)

Since = Annotated[
    str,
    Query("The cursor: `serverHlc` of the page before.", pattern=STAMP_FORM),
]
Limit = Annotated[
    int,
    Query("Deltas wanted; a page holds whole commits, and 10,000 deltas at the most.", ge=1),
]
Epoch = Annotated[
    str,
    Query(
        "`epoch` of a page or receipt. Refused (409) if it is another gateway's.",
        max_length=EPOCH_LENGTH_MAX,
    ),
]
Snapshot = Annotated[
    str,
    Query(
        "`begin` for all rows as they are, after a 410, or `begin:todos,notes` to have "
        "these tables first; then `snapshot` of the page before, for as long as there is one. "
        "Pages of a source always have one.",
        max_length=PLACES_CHARS_MAX,
    ),
]
Scope = Annotated[str, Query("`scope` of the page before.", max_length=SCOPE_CHARS_MAX)]
Removes = Annotated[
    bool,
    Query("The client knows `REMOVE`: a row that it may no longer see is removed, not deleted."),
]
OwnCursor = Annotated[
    bool,
    Query("The client merges by stamps, and receipts do not move its cursor.", alias="ownCursor"),
]
Fresh = Annotated[
    bool,
    Query(
        "The last page ends at the newest commit, even while many write; else it may "
        "end a quarter of a second before, and says so in `behindMs`."
    ),
]
AtLeast = Annotated[
    str,
    Query(
        "The same up to this stamp alone: `serverHlc` of a receipt.",
        alias="atLeast",
        pattern=STAMP_FORM,
    ),
]


Quarantined = Annotated[
    int | None,
    Query(
        "How many of the client's edits were refused, for administrators to see.",
        ge=0,
        le=QUARANTINED_MAX,
    ),
]


Source = Annotated[
    str | None,
    Query(
        "The declared destination to pull from, in place of the gateway: by the same "
        "rules, page after page by `snapshot` alone.",
        max_length=_SOURCE_LENGTH_MAX,
    ),
]


def pull_routes(
    service: PullService | FollowingPulls | SourcePulls, *, of_sources: bool = False
) -> Router:
    """Return the routes around the service."""
    router = guarded_router()

    def page(request: Request, client: Caller, gateway: str, asked: Pull) -> Response:
        reads = answer_encoding(request.headers.get("accept"), otherwise=Encoding.JSON)
        asked = replace(asked, claims=client.token.all, bytes_max=_bytes_max(reads))
        pulled = service.pull(gateway, asked)
        noted(client.access, gateway, asked)
        return answer(request, _encoded(gateway, pulled, reads), reads)

    @router.get(
        "/sync/{gateway}/pull",
        summary="Fetch what is new",
        operation_id="pull",
        responses=_ANSWERS,
    )
    async def pull(
        gateway: Gateway,
        client: Caller,
        request: Request,
        since: Since = "0",
        client_id: ClientId = None,
        limit: Limit = DELTAS_DEFAULT,
        epoch: Epoch = "",
        snapshot: Snapshot = "",
        scope: Scope = "",
        removes: Removes = False,  # noqa: FBT002 - passed by name
        own_cursor: OwnCursor = False,  # noqa: FBT002 - as above
        source: Source = None,
        quarantined: Quarantined = None,
        fresh: Fresh = False,  # noqa: FBT002 - as above
        at_least: AtLeast = "0",
    ) -> Response:
        """Return the next page after a cursor. Safe to repeat.

        A page holds whole commits, so it may exceed `limit` by less than one commit, or end before
        it if the answer would be too large. Pull again while `hasMore`. The token decides which
        rows the page shows, and whose `clientId` it accepts.
        """
        asked = Pull(
            client.speaks_for(client_id),
            jsonish.stamp_parameter(since, "since"),
            min(limit, DEFAULT_LIMITS.page_deltas_max),
            epoch,
            snapshot,
            removes=removes,
            scope=scope,
            own_cursor=own_cursor,
            at_least=STAMP_MAX if fresh else jsonish.stamp_parameter(at_least, "atLeast"),
            source=_source(source, of_sources),
            quarantined=quarantined,
        )
        return page(request, client, gateway, asked)

    @router.post(
        "/sync/{gateway}/pull",
        summary="Fetch what is new, asked for in a body",
        operation_id="pullByPost",
        responses=_POST_ANSWERS,
        openapi_extra=api.takes("Pull", protobuf=True),
    )
    async def pull_by_post(
        gateway: Gateway, client: Caller, request: Request, source: Source = None
    ) -> Response:
        """Return the same page as GET, for clients whose position does not fit an address."""
        sent = request_encoding(request.headers.get("content-type"))
        wanted = _DECODE[sent](await body_of(request, PULL_BODY_BYTES_MAX))
        asked = replace(
            wanted,
            client_id=client.speaks_for(wanted.client_id or None),
            deltas_max=min(wanted.deltas_max, DEFAULT_LIMITS.page_deltas_max),
            source=_source(source, of_sources),
        )
        return page(request, client, gateway, asked)

    return router


def _source(source: str | None, of_sources: bool) -> str:  # noqa: FBT001 - what is asked and served
    if (source is not None) is not of_sources:
        raise NotFound("no sources are served here", field="source")
    return source or ""


def _encoded(gateway: str, page: PullPage, reads: Encoding) -> bytes:
    answered = _ENCODE[reads](page)
    observe.count("DeltasPulled", page.count)
    observe.usage(gateway, bytes_out=len(answered), pulled=page.count)
    return answered


def _bytes_max(reads: Encoding) -> int:
    """Return the most bytes of deltas that fit an answer in an encoding, whatever they contain."""
    growth = jsonish.JSON_GROWTH_TIMES_MAX if reads is Encoding.JSON else 1
    return (ANSWER_BYTES_MAX - _REST_BYTES) // growth


# --- checkpoints ----------------------------------------------------------------------------------


STREAM: Final = "application/x-lakesync-checkpoint-stream"
_GZIP_LEVEL: Final = 1
_GZIP_WINDOW: Final = 31
_PARTS_MAX: Final = 10**9

Table = Annotated[
    str | None,
    Query("Asks for one part of this table.", pattern=TABLE_FORM),
]
Part = Annotated[int | None, Query("Which part of the table, from 0.", ge=0, lt=_PARTS_MAX)]
Which = Annotated[
    str | None,
    Query(
        "`X-Checkpoint-Id` of the part before, so that all are of one checkpoint.",
        pattern=CHECKPOINT_FORM,
    ),
]


def checkpoint_routes(service: CheckpointService) -> Router:
    """Return the route around the service."""
    router = guarded_router()

    @router.get(
        "/sync/{gateway}/checkpoint",
        summary="Fetch all rows",
        operation_id="checkpoint",
        responses=api.binary_answers(
            STREAM, "Frames: four bytes of length, then a SyncResponse.", 404, 410, 413, 502
        ),
    )
    async def checkpoint(
        gateway: Gateway,
        client: Caller,
        request: Request,
        table: Table = None,
        part: Part = None,
        checkpoint: Which = None,
        client_id: ClientId = None,
    ) -> Response:
        """Return the latest checkpoint as a stream of frames, or one part of it as one frame.

        `X-Checkpoint-Hlc` is the cursor from which to pull afterwards. `X-Checkpoint-Next` is the
        query of the next part, as long as there is one. A request for more than one answer can hold
        is refused with the parts to ask for.
        """
        asked = Pull(
            client.speaks_for(client_id),
            deltas_max=DEFAULT_LIMITS.page_deltas_max,
            claims=client.token.all,
        )
        if table is None and part is None and checkpoint is None:
            # Our own clients ask for parts, or for a snapshot.
            whole = service.whole(gateway, replace(asked, own_cursor=False))
            return _answer(request, whole.checkpoint, whole.since, *_body(request, whole))
        answered = service.part(gateway, asked, table or "", part or 0, checkpoint or "")
        following = {}
        if answered.following:
            name, number = answered.following
            query = f"checkpoint={answered.checkpoint}&table={name}&part={number}"
            following["x-checkpoint-next"] = query
        body, coding = _packed(request, answered.frame)
        return _answer(request, answered.checkpoint, answered.since, body, coding | following)

    return router


def _packed(request: Request, body: bytes) -> tuple[bytes, dict[str, str]]:
    if len(body) >= http.GZIP_BYTES_MIN and _reads_gzip(request):
        return http.compressed(body), {"content-encoding": "gzip"}
    return body, {}


def _body(request: Request, whole: CheckpointFrames) -> tuple[bytes, dict[str, str]]:
    """Return all frames as one body, compressed frame by frame if the caller accepts that.

    Raises:
        CheckpointTooLarge: it is more than Lambda can answer.
    """
    packs = _reads_gzip(request)
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    packed: list[bytes] = []
    size = 0
    for piece in whole.frames:
        packed.append(packer.compress(piece) if packs else piece)
        size += len(packed[-1])
        if size > ANSWER_BYTES_MAX:
            raise whole.too_large
    if packs:
        packed.append(packer.flush())
        if size + len(packed[-1]) > ANSWER_BYTES_MAX:
            raise whole.too_large
    return b"".join(packed), {"content-encoding": "gzip"} if packs else {}


def _reads_gzip(request: Request) -> bool:
    return http.accepts_gzip(request.headers.get("accept-encoding"))


def _answer(
    request: Request, checkpoint: str, since: int, body: bytes, headers: dict[str, str]
) -> Response:
    observe.count("CheckpointBytes", len(body))
    observe.usage(request.path_params["gateway"], pulled=1, bytes_out=len(body))
    return Response(
        body,
        media_type=STREAM,
        headers={
            "x-request-id": request_id(request.scope),
            "x-checkpoint-hlc": str(since),
            "x-checkpoint-id": checkpoint,
            "vary": "accept-encoding",
        } | headers,
    )  # fmt: skip


# --- tickets --------------------------------------------------------------------------------------


def ticket_routes(tickets: Callable[[], SocketTickets]) -> Router:
    """Return the route around what issues tickets, which is made when it is first asked."""
    router = guarded_router()

    @router.post(
        "/sync/{gateway}/ticket",
        summary="Get a ticket that opens one WebSocket",
        operation_id="ticket",
        responses=api.answers("Ticket", "A ticket, for `?ticket=` of a handshake."),
    )
    async def ticket(gateway: Gateway, client: Caller, request: Request) -> Response:  # noqa: ARG001 - documented
        """Return a ticket for one handshake, in place of the token. Each call gives a new one.

        What it opens has the token's claims, and ends when the token would.
        """
        body = {"ticket": tickets().issue(client.token), "expiresInS": TICKET_S_MAX}
        return answer_json(request, body)

    return router


# --- pulls from sources ---------------------------------------------------------------------------


SOURCE_S: Final = 20
"""How long a page of a source may take: its function's time-out."""
_PULL: Final = "/pull"


def with_sources(handler: Handler, invoke: Invoke) -> Handler:
    """Return the handler that has pulls from a source answered elsewhere."""

    def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
        named = "source" in parse_qs(event.get("rawQueryString", ""), keep_blank_values=True)
        if not named or not str(event.get("rawPath", "")).endswith(_PULL):
            return handler(event, context)
        try:
            return _source_answer(invoke, event)
        finally:
            observe.publish()

    return handle


def _source_answer(invoke: Invoke, event: dict[str, Any]) -> dict[str, Any]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - a cold start

    answer: dict[str, Any] = {}
    cause = "it died, or took too long"
    try:
        returned, payload = invoke(json.dumps(event))
        answer = json.loads(payload) if returned else {}
    except (BotoCoreError, ClientError) as exc:
        cause = str(exc)  # for the log alone: it names what is in the account
    if "statusCode" in answer:
        return answer
    error = SourceUnavailable("the function that reads sources did not answer; try again later")
    observe.failure(error, path=str(event["rawPath"]), cause=cause)
    response = error_answer({"type": "http", "aws.event": event}, error)
    headers = dict([*response.headers.items(), NOT_CACHED])
    return {
        "statusCode": response.status_code,
        "headers": headers,
        "body": bytes(response.body).decode(),
    }
