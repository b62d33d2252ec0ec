"""Builds objects from settings: the one place that chooses implementations, per cold start.

Modules that a function does not use are not even imported, which would lengthen its cold start.
Tests replace `buffer` with another buffer, and run the same functions. What only some functions
need is built by `wiring_connectors` and `websockets`, and beside the handlers that use it.
"""

from __future__ import annotations

import os
import random
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from lakesync.ports import Quota
from lakesync.runtime import settings as settings_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lakesync.adapters.lake.s3 import SqsQueue
    from lakesync.buffer.caller import DynamoCaller
    from lakesync.buffer.items import ItemStore
    from lakesync.compat.follower_deltas import FollowingPushes
    from lakesync.compat.follower_pulls import CheckpointService, FollowingPulls
    from lakesync.gateway.access import Access, AccessAdmin, Quotas
    from lakesync.gateway.admin import AdminService
    from lakesync.gateway.admin_changes import Audit
    from lakesync.gateway.attachments import AttachmentService
    from lakesync.log.lanes import Limits
    from lakesync.maintenance.flush import Flusher
    from lakesync.ports import (
        AccessStore,
        AuditStore,
        Buffer,
        GatewayItems,
        GatewaySlice,
        ObjectStore,
        QuotaStore,
        SignedObjects,
    )
    from lakesync.runtime.observe import Invoke
    from lakesync.runtime.settings import (
        AdminSettings,
        AttachmentSettings,
        Aws,
        BufferSettings,
        FlushSettings,
        PollSettings,
        PullSettings,
        PushSettings,
        QuotaSettings,
        ScheduleFlushSettings,
    )

S = TypeVar("S")
CALL_TIMEOUT_S: Final = 5
S3_ANSWER_S_MAX: Final = 30
"""How long S3 may take to answer: for objects of some megabytes."""


def load(kind: type[S]) -> S:
    """Return one function's settings out of its environment.

    Raises:
        SettingsError: variables are missing or malformed.
    """
    return settings_module.load(kind, os.environ)


def wall_clock() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the milliseconds of a clock that never steps."""
    return time.monotonic_ns() // 1_000_000


def sleep_ms(milliseconds: float) -> None:
    """Wait."""
    time.sleep(milliseconds / 1000)


class Randomness:
    """`lakesync.log.commit.Chance` by the operating system's randomness."""

    def jitter(self) -> float:
        """Return a number in [0, 1)."""
        return random.random()  # noqa: S311 - spreads retries, hides nothing

    def token(self) -> str:
        """Return a name that is never given again."""
        return uuid4().hex


def buffer(settings: BufferSettings) -> Buffer:
    """Return the buffer on DynamoDB."""
    from lakesync.buffer.dynamo import DynamoBuffer  # noqa: PLC0415

    return DynamoBuffer(settings.buffer_table, dynamo(settings))


# --- the gateway ----------------------------------------------------------------------------------


def push_service(settings: PushSettings) -> FollowingPushes:
    """Return the service behind ``functions/push``."""
    from lakesync.compat.follower_deltas import FollowingPushes  # noqa: PLC0415
    from lakesync.gateway.push import PushService  # noqa: PLC0415

    store = buffer(settings)
    pushes = PushService(
        store,
        wall_clock=wall_clock,
        sleep_ms=sleep_ms,
        chance=Randomness(),
        limits=limits(settings),
        on_threshold=_ask_for_flush(settings),
    )
    return FollowingPushes(pushes, store)


def limits(settings: PushSettings) -> Limits:
    """Return the gateway's limits, with those that the deployment declares."""
    from lakesync.log.lanes import Limits  # noqa: PLC0415

    return Limits(
        flush_threshold_bytes=settings.flush_threshold_bytes,
        backpressure_bytes_max=settings.backpressure_bytes_max,
        backpressure_age_ms_max=settings.backpressure_age_s_max * 1000,
    )


def pull_services(settings: PullSettings) -> tuple[FollowingPulls, CheckpointService]:
    """Return the services behind ``functions/pull``."""
    from lakesync.checkpoint.store import Checkpoints  # noqa: PLC0415
    from lakesync.compat.follower_pulls import CheckpointService, FollowingPulls  # noqa: PLC0415
    from lakesync.gateway.pull import PullService  # noqa: PLC0415

    store, checkpoints = buffer(settings), Checkpoints(objects(settings, settings.lake_bucket))
    pulls = PullService(
        store, wall_clock=wall_clock, monotonic_ms=monotonic_ms, checkpoints=checkpoints
    )
    following = FollowingPulls(pulls, store, wall_clock=wall_clock)
    return following, CheckpointService(store, checkpoints)


def admin_service(settings: BufferSettings) -> AdminService:
    """Return the service behind the configuration routes of ``functions/admin``."""
    from lakesync.gateway.admin import AdminService  # noqa: PLC0415

    return AdminService(
        buffer(settings), wall_clock=wall_clock, sleep_ms=sleep_ms, chance=Randomness()
    )


def _ask_for_flush(settings: PushSettings) -> Callable[[str], None]:
    # Created when it is first needed: crossing the threshold is rare, and importing the SDK would
    # be most of a cold start.
    made = cache(lambda: queue(settings, settings.flush_queue_url))

    def ask(gateway: str) -> None:
        from lakesync.runtime.tasks import ask_for_flush  # noqa: PLC0415

        ask_for_flush(made)(gateway)

    return ask


# --- the lake -------------------------------------------------------------------------------------


def client(
    settings: Aws,
    service: str,
    *,
    answer_s_max: int = CALL_TIMEOUT_S,
    attempts: int = 3,
    **further: Any,
) -> Any:
    """Return an AWS client that gives up in time for its function to say so.

    ``further`` is botocore's own configuration.
    """
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    config = Config(
        connect_timeout=2,
        read_timeout=answer_s_max,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        **further,
    )
    make: Any = boto3.client
    return make(service, region_name=settings.region, config=config)


def queue(settings: Aws, url: str, delay_s: int = 0) -> SqsQueue:
    """Return an SQS queue."""
    from lakesync.adapters.lake.s3 import SqsQueue  # noqa: PLC0415

    return SqsQueue(url, client(settings, "sqs"), delay_s)


def objects(settings: Aws, bucket: str) -> ObjectStore:
    """Return the objects of an S3 bucket."""
    from lakesync.adapters.lake.adapter import LateObjects  # noqa: PLC0415

    def make() -> ObjectStore:
        from lakesync.adapters.lake.s3 import S3Objects  # noqa: PLC0415

        return S3Objects(bucket, client(settings, "s3", answer_s_max=S3_ANSWER_S_MAX))

    return LateObjects(make)


def flusher(settings: FlushSettings) -> Flusher:
    """Return the service behind ``functions/flush``."""
    from lakesync.adapters.lake.parquet import ParquetEncoder  # noqa: PLC0415
    from lakesync.maintenance.flush import CLOSE_AFTER_S, Flusher  # noqa: PLC0415
    from lakesync.runtime.tasks import ask_to_close  # noqa: PLC0415

    return Flusher(
        buffer(settings), objects(settings, settings.lake_bucket),
        queue(settings, settings.announce_queue_url), ParquetEncoder(),
        queue(settings, settings.deliver_queue_url),
        still_open=ask_to_close(queue(settings, settings.flush_queue_url, CLOSE_AFTER_S)),
    )  # fmt: skip


def due(settings: ScheduleFlushSettings) -> Callable[[str], Iterator[GatewaySlice]]:
    """Return a function that lists the gateways with unflushed data, from a position on."""
    from lakesync.maintenance.flush import due_slices  # noqa: PLC0415

    store = buffer(settings)
    return lambda place: due_slices(store, place)


def start_again(settings: Aws) -> Callable[[str, str], None]:
    """Return a function that invokes another with an event, without waiting for its answer."""
    # Made when it is first needed, which is rare.
    made = cache(lambda: client(settings, "lambda"))

    def start(function: str, event: str) -> None:
        made().invoke(FunctionName=function, InvocationType="Event", Payload=event)

    return start


def flush_now(settings: AdminSettings) -> Callable[[str, str], Mapping[str, object]]:
    """Return a function that has ``functions/flush`` flush a gateway or a table, and waits."""
    from lakesync.runtime.tasks import FLUSH_NOW_S, flush_and_wait  # noqa: PLC0415

    return flush_and_wait(invoker(settings, settings.flush_function, FLUSH_NOW_S))


def delete_now(settings: AdminSettings) -> Callable[[str, str], Mapping[str, object]]:
    """Return a function that has ``functions/retain`` delete one gateway, and waits for it."""
    from lakesync.runtime.tasks import DELETE_NOW_S, delete_and_wait  # noqa: PLC0415

    return delete_and_wait(invoker(settings, settings.retain_function, DELETE_NOW_S))


def invoker(settings: Aws, function: str, seconds: int) -> Invoke:
    """Return a function that passes a request to another; returns whether it answered, and what."""

    @cache
    def invoking() -> Any:
        # One attempt: a slow function is still at work, and may be called again.
        return client(settings, "lambda", answer_s_max=seconds + 5, attempts=1)

    def invoke(request: str) -> tuple[bool, bytes]:
        answer = invoking().invoke(FunctionName=function, Payload=request)
        return "FunctionError" not in answer, answer["Payload"].read()

    return invoke


@cache
def dynamo(settings: BufferSettings) -> DynamoCaller:
    """Return the caller of the buffer's DynamoDB: one for each process, with one connection."""
    from lakesync.buffer.caller import DynamoCaller  # noqa: PLC0415

    return DynamoCaller(settings.region, settings.dynamodb_endpoint or settings.endpoint)


@cache
def item_store(settings: BufferSettings, table: str) -> ItemStore:
    """Return what is stored beside the buffer in a table."""
    from lakesync.buffer.dynamo_items import DynamoItemStore  # noqa: PLC0415

    return DynamoItemStore(table, dynamo(settings))


# --- access, quotas and audit ---------------------------------------------------------------------


def access(settings: BufferSettings) -> Access:
    """Return the check that admits callers."""
    from lakesync.gateway.access import Access  # noqa: PLC0415

    return Access(store(settings), wall_clock=wall_clock, monotonic_ms=monotonic_ms)


def access_admin(settings: BufferSettings) -> AccessAdmin:
    """Return the service that shows and changes who may use a gateway."""
    from lakesync.gateway.access import AccessAdmin  # noqa: PLC0415

    return AccessAdmin(store(settings), wall_clock=wall_clock)


def store(settings: BufferSettings) -> AccessStore:
    """Return the users of clients and the revocations, in the buffer's table."""
    from lakesync.buffer.admission import ItemAccess  # noqa: PLC0415

    return ItemAccess(item_store(settings, settings.buffer_table))


def audit(settings: AdminSettings | PollSettings) -> Audit:
    """Return the service that records the changes of administrators, and shows them."""
    from lakesync.gateway.admin_changes import Audit  # noqa: PLC0415

    token = Randomness().token
    return Audit(audit_store(settings), wall_clock=wall_clock, token=token)


def audit_store(settings: AdminSettings | PollSettings) -> AuditStore:
    """Return the audit records, in a table of their own."""
    from lakesync.buffer.admin_stores import ItemAudit  # noqa: PLC0415

    return ItemAudit(item_store(settings, settings.audit_table))


def items(settings: BufferSettings) -> GatewayItems:
    """Return all that is stored of a gateway in the buffer's table."""
    from lakesync.buffer.dynamo_items import DynamoRemoval  # noqa: PLC0415

    return DynamoRemoval(settings.buffer_table, dynamo(settings))


def quotas(settings: QuotaSettings) -> Quotas:
    """Return the check that keeps each gateway within its quota."""
    from lakesync.gateway.access import Quotas  # noqa: PLC0415

    default = Quota(settings.quota_pushes, settings.quota_deltas, settings.quota_bytes)
    return Quotas(quota_store(settings), default, wall_clock=wall_clock)


def quota_store(settings: BufferSettings) -> QuotaStore:
    """Return the use and the quotas of gateways, in the buffer's table."""
    from lakesync.buffer.admission import ItemQuotas  # noqa: PLC0415

    return ItemQuotas(item_store(settings, settings.buffer_table))


# --- attachments ----------------------------------------------------------------------------------


_ANSWER_S_MAX: Final = 20
"""How long S3 may take: to put a large file's parts together takes seconds."""


def attachment_service(settings: AttachmentSettings) -> Callable[[], AttachmentService]:
    """Return a function that creates the service at first use: the SDK is most of a cold start."""

    @cache
    def service() -> AttachmentService:
        from lakesync.gateway.attachments import AttachmentService  # noqa: PLC0415

        return AttachmentService(
            buffer(settings),
            signed_objects(settings),
            bytes_max=settings.attachment_bytes_max,
        )

    return service


def signed_objects(settings: AttachmentSettings) -> SignedObjects:
    """Return attachments on S3."""
    from lakesync.adapters.lake.s3 import S3SignedObjects  # noqa: PLC0415

    s3 = client(
        settings,
        "s3",
        answer_s_max=_ANSWER_S_MAX,
        signature_version="s3v4",
        # The bucket's own host in its own region: another would redirect, and a signature is for
        # one host.
        s3={"addressing_style": "virtual"},
    )
    return S3SignedObjects(settings.lake_bucket, s3)
