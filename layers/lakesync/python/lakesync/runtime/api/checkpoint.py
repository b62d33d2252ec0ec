"""``GET /sync/{gateway}/checkpoint``: all rows at once, or part by part."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from lakesync.core.messages import Pull
from lakesync.log.limits import DEFAULT_LIMITS
from lakesync.runtime import bodies, observe
from lakesync.runtime.api import shapes
from lakesync.runtime.guard import guarded_router
from lakesync.runtime.http import ANSWER_BYTES_MAX, Client, ClientId, Gateway, request_id
from lakesync.runtime.parameters import CHECKPOINT_FORM, TABLE_FORM

if TYPE_CHECKING:
    from lakesync.compat.checkpoint_stream import CheckpointFrames, CheckpointService

STREAM: Final = "application/x-lakesync-checkpoint-stream"
_GZIP_LEVEL: Final = 1
_GZIP_WINDOW: Final = 31
_PARTS_MAX: Final = 10**9

Table = Annotated[
    str | None,
    Query(pattern=TABLE_FORM, description="Asks for one part of this table."),
]
Part = Annotated[
    int | None, Query(ge=0, lt=_PARTS_MAX, description="Which part of the table, from 0.")
]
Which = Annotated[
    str | None,
    Query(
        pattern=CHECKPOINT_FORM,
        description="`X-Checkpoint-Id` of the part before, so that all are of one checkpoint.",
    ),
]


def checkpoint_routes(service: CheckpointService) -> APIRouter:
    """Return the route around the service."""
    router = guarded_router(tags=["sync"])

    @router.get(
        "/sync/{gateway}/checkpoint",
        summary="Fetch all rows",
        operation_id="checkpoint",
        response_class=Response,
        responses=shapes.binary_answers(
            STREAM, "Frames: four bytes of length, then a SyncResponse.", 404, 410, 413, 502
        ),
    )
    async def checkpoint(
        gateway: Gateway,
        client: Client,
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
    if len(body) >= bodies.GZIP_BYTES_MIN and _reads_gzip(request):
        return bodies.compressed(body), {"content-encoding": "gzip"}
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
    return bodies.accepts_gzip(request.headers.get("accept-encoding"))


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
