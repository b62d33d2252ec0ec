"""``GET /sync/{gateway}/pull``: a client fetches what became visible after its cursor."""

from __future__ import annotations

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
from lakesync.runtime.api import schemas
from lakesync.runtime.bodies import Encoding, answer_encoding
from lakesync.runtime.guard import guarded_router
from lakesync.runtime.http import ANSWER_BYTES_MAX, Client, ClientId, Gateway, answer
from lakesync.runtime.noting import noted
from lakesync.runtime.parameters import STAMP_FORM
from lakesync.wire import jsonish, proto

if TYPE_CHECKING:
    from lakesync.compat.followers import FollowingPulls
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import PullPage
    from lakesync.delivery.source_pull import SourcePulls
    from lakesync.gateway.pull import PullService

DELTAS_DEFAULT: Final = 100
_REST_BYTES: Final = 5_000
"""What a page says beside its deltas: its scope, mostly."""
_SOURCE_LENGTH_MAX: Final = 64
_ENCODE: Final = {Encoding.JSON: jsonish.encode_page, Encoding.PROTOBUF: proto.encode_page}

_ANSWERS: Final = schemas.answers(
    "PullPage", "Whole commits, and the next cursor.", 404, 409, 410, 502, 503, protobuf=True
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
    """Return the route around the service.

    Args:
        service: answers.
        of_sources: whether it answers only for sources.
    """
    router = guarded_router(tags=["sync"])

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
        reads = answer_encoding(request.headers.get("accept"), otherwise=Encoding.JSON)
        asked = Pull(
            client.speaks_for(client_id),
            jsonish.stamp_parameter(since, "since"),
            min(limit, DEFAULT_LIMITS.page_deltas_max),
            epoch,
            snapshot,
            claims=client.token.all,
            removes=removes,
            scope=scope,
            own_cursor=own_cursor,
            at_least=at_least,
            source=_source(source, of_sources),
            bytes_max=_bytes_max(reads),
            quarantined=quarantined,
        )
        page = service.pull(gateway, asked)
        noted(client.access, gateway, asked)
        return answer(request, _encoded(gateway, page, reads), reads)

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
