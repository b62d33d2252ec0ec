"""``/sync/{gateway}/pull``: by GET or POST a client fetches what became visible."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Depends, Query, Request, Response

from lakesync.core.clock import STAMP_MAX
from lakesync.core.epoch import EPOCH_LENGTH_MAX
from lakesync.core.messages import QUARANTINED_MAX, Pull
from lakesync.core.scope import SCOPE_CHARS_MAX
from lakesync.delivery.source_places import PLACES_CHARS_MAX
from lakesync.errors import NotFound
from lakesync.log.limits import DEFAULT_LIMITS
from lakesync.runtime import observe
from lakesync.runtime.api import shapes
from lakesync.runtime.bodies import Encoding, answer_encoding, request_encoding
from lakesync.runtime.guard import guarded_router
from lakesync.runtime.http import ANSWER_BYTES_MAX, Client, ClientId, Gateway, answer, body_of
from lakesync.runtime.noting import noted
from lakesync.runtime.parameters import STAMP_FORM
from lakesync.wire import jsonish, proto

if TYPE_CHECKING:
    from lakesync.compat.followers import FollowingPulls
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import PullPage
    from lakesync.delivery.source_pull import SourcePulls
    from lakesync.gateway.pull import PullService
    from lakesync.runtime.auth import Caller

DELTAS_DEFAULT: Final = 100
_REST_BYTES: Final = 5_000
"""What a page says beside its deltas: its scope, mostly."""
_SOURCE_LENGTH_MAX: Final = 64
PULL_BODY_BYTES_MAX: Final = 32 * 1024
"""A position with its scope fits several times."""
_DECODE: Final = {Encoding.JSON: jsonish.decode_pull, Encoding.PROTOBUF: proto.decode_pull}
_ENCODE: Final = {Encoding.JSON: jsonish.encode_page, Encoding.PROTOBUF: proto.encode_page}

_MEANS: Final = "Whole commits, and the next cursor."
_ANSWERS: Final = shapes.answers("PullPage", _MEANS, 404, 409, 410, 502, 503, protobuf=True)
_POST_ANSWERS: Final = shapes.answers(
    "PullPage", _MEANS, 404, 409, 410, 413, 502, 503, protobuf=True
)

Since = Annotated[
    str,
    Query(pattern=STAMP_FORM, description="The cursor: `serverHlc` of the page before."),
]
Limit = Annotated[
    int,
    Query(
        ge=1,
        description="Deltas wanted; a page holds whole commits, and 10,000 deltas at the most.",
    ),
]
Epoch = Annotated[
    str,
    Query(
        max_length=EPOCH_LENGTH_MAX,
        description="`epoch` of a page or receipt. Refused (409) if it is another gateway's.",
    ),
]
Snapshot = Annotated[
    str,
    Query(
        max_length=PLACES_CHARS_MAX,
        description="`begin` for all rows as they are, after a 410, or `begin:todos,notes` to have "
        "these tables first; then `snapshot` of the page before, for as long as there is one. "
        "Pages of a source always have one.",
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
Fresh = Annotated[
    bool,
    Query(
        description="The last page ends at the newest commit, even while many write; else it may "
        "end a quarter of a second before, and says so in `behindMs`."
    ),
]
AtLeast = Annotated[
    str,
    Query(
        alias="atLeast",
        pattern=STAMP_FORM,
        description="The same up to this stamp alone: `serverHlc` of a receipt.",
    ),
]


Quarantined = Annotated[
    int | None,
    Query(
        ge=0,
        le=QUARANTINED_MAX,
        description="How many of the client's edits were refused, for administrators to see.",
    ),
]


def _at_least(
    fresh: Fresh = False,  # noqa: FBT002 - FastAPI passes it by name
    at_least: AtLeast = "0",
) -> Stamp:
    """Return the stamp up to which the last page must reach."""
    return STAMP_MAX if fresh else jsonish.stamp_parameter(at_least, "atLeast")


Freshness = Annotated[int, Depends(_at_least)]
Source = Annotated[
    str | None,
    Query(
        max_length=_SOURCE_LENGTH_MAX,
        description="The declared destination to pull from, in place of the gateway: by the same "
        "rules, page after page by `snapshot` alone.",
    ),
]


def pull_routes(
    service: PullService | FollowingPulls | SourcePulls, *, of_sources: bool = False
) -> APIRouter:
    """Return the routes around the service.

    Args:
        service: answers.
        of_sources: whether it answers only for sources.
    """
    router = guarded_router(tags=["sync"])

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
        response_class=Response,
        responses=_ANSWERS,
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
        at_least: Freshness = 0,
        source: Source = None,
        quarantined: Quarantined = None,
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
            at_least=at_least,
            source=_source(source, of_sources),
            quarantined=quarantined,
        )
        return page(request, client, gateway, asked)

    @router.post(
        "/sync/{gateway}/pull",
        summary="Fetch what is new, asked for in a body",
        operation_id="pullByPost",
        response_class=Response,
        responses=_POST_ANSWERS,
        openapi_extra=shapes.takes("Pull", protobuf=True),
    )
    async def pull_by_post(
        gateway: Gateway, client: Client, request: Request, source: Source = None
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
    """Write a page, and count what it brings."""
    answered = _ENCODE[reads](page)
    observe.count("DeltasPulled", page.count)
    observe.usage(gateway, bytes_out=len(answered), pulled=page.count)
    return answered


def _bytes_max(reads: Encoding) -> int:
    """Return the most bytes of deltas that fit an answer in an encoding, whatever they contain."""
    growth = jsonish.JSON_GROWTH_TIMES_MAX if reads is Encoding.JSON else 1
    return (ANSWER_BYTES_MAX - _REST_BYTES) // growth
