"""``GET /sync/{gateway}/pull``: a client fetches what became visible after its cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from lakesync.core.delta import check_client_id
from lakesync.core.messages import Pull
from lakesync.core.scope import SCOPE_CHARS_MAX
from lakesync.errors import NotFound
from lakesync.log.limits import DEFAULT_LIMITS
from lakesync.runtime import observe
from lakesync.runtime.api import schemas
from lakesync.runtime.bodies import Encoding, answer_encoding
from lakesync.runtime.http import ANSWER_BYTES_MAX, Client, Gateway, answer
from lakesync.wire import jsonish, proto

if TYPE_CHECKING:
    from lakesync.compat.followers import FollowingPulls
    from lakesync.gateway.pull import PullService

DELTAS_DEFAULT: Final = 100
_REST_BYTES: Final = 5_000
"""What a page says beside its deltas: its scope, mostly."""
_EPOCH_LENGTH_MAX: Final = 64
_SNAPSHOT_LENGTH_MAX: Final = 1_024
_ENCODE: Final = {Encoding.JSON: jsonish.encode_page, Encoding.PROTOBUF: proto.encode_page}

Since = Annotated[
    str,
    Query(pattern="^[0-9]{1,19}$", description="The cursor: `serverHlc` of the page before."),
]
ClientId = Annotated[
    str | None,
    Query(alias="clientId", description="Whose page it is; the token's `sub` if left out."),
]
Limit = Annotated[
    int,
    Query(
        ge=1,
        description="Deltas wanted; a page holds whole commits, and 10,000 deltas at the most.",
    ),
]
Epoch = Annotated[
    str, Query(max_length=_EPOCH_LENGTH_MAX, description="`epoch` of the page before.")
]
Snapshot = Annotated[
    str,
    Query(
        max_length=_SNAPSHOT_LENGTH_MAX,
        description="`begin` for all rows as they are, after a 410; then `snapshot` of the page "
        "before, for as long as there is one.",
    ),
]
Scope = Annotated[str, Query(max_length=SCOPE_CHARS_MAX, description="`scope` of the page before.")]
Removes = Annotated[
    bool,
    Query(
        description="The client knows `REMOVE`: a row that it may no longer see is removed, not "
        "deleted."
    ),
]
OwnCursor = Annotated[
    bool,
    Query(
        alias="ownCursor",
        description="The client merges by stamps, and receipts do not move its cursor.",
    ),
]
Source = Annotated[
    str | None, Query(description="The named adapter to pull from, in place of the gateway.")
]


def pull_routes(service: PullService | FollowingPulls) -> APIRouter:
    """Give the route around the service."""
    router = APIRouter(tags=["sync"])

    @router.get(
        "/sync/{gateway}/pull",
        summary="Fetch what is new",
        operation_id="pull",
        response_class=Response,
        responses=schemas.answers(
            "PullPage", "Whole commits, and the next cursor.", 404, 410, protobuf=True
        ),
    )
    async def pull(
        gateway: Gateway,
        client: Client,
        request: Request,
        since: Since = "0",
        client_id: ClientId = None,
        limit: Limit = DELTAS_DEFAULT,
        epoch: Epoch = "",
        snapshot: Snapshot = "",
        scope: Scope = "",
        removes: Removes = False,  # noqa: FBT002 - FastAPI passes it by name
        own_cursor: OwnCursor = False,  # noqa: FBT002 - as above
        source: Source = None,
    ) -> Response:
        """Give the next page after a cursor. Safe to repeat.

        A page holds whole commits, so it may exceed `limit` by less than one commit, or end
        before it where an answer would be too large. Pull again while `hasMore`. What it shows is
        decided by the token, whatever `clientId` says; under a name that is not the token's,
        nothing is remembered of the client.
        """
        if source is not None:
            raise NotFound("no such source", field="source")
        cursor = jsonish.stamp_parameter(since, "since")
        reads = answer_encoding(request.headers.get("accept"), otherwise=Encoding.JSON)
        asked = Pull(
            check_client_id(client.token.client_id if client_id is None else client_id),
            cursor,
            min(limit, DEFAULT_LIMITS.page_deltas_max),
            epoch,
            snapshot,
            claims=client.token.all,
            removes=removes,
            scope=scope,
            own_cursor=own_cursor,
            bytes_max=_bytes_max(reads),
        )
        page = service.pull(gateway, asked)
        observe.count("DeltasPulled", page.count)
        return answer(request, _ENCODE[reads](page), reads)

    return router


def _bytes_max(reads: Encoding) -> int:
    """Give the bytes of deltas that an answer in an encoding can carry, whatever they are."""
    growth = jsonish.JSON_GROWTH_TIMES_MAX if reads is Encoding.JSON else 1
    return (ANSWER_BYTES_MAX - _REST_BYTES) // growth
