"""The deployed flush, run in this process with ports that give up: killed at any of its steps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.adapters.lake.s3 import S3Objects, SqsQueue
from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.core.delta import Op
from lakesync.maintenance.flush import Flusher

if TYPE_CHECKING:
    from tests.support.deployed import Tenant

TABLES = ("todos", "notes")
STEPS = (
    "record the range",
    "write the first table's rows",
    "write the first table's claim",
    "write the second table's rows",
    "write the second table's claim",
    "announce both",
    "remember the first table's last commit",
    "remember the second table's last commit",
    "move the watermark",
    "tell the head",
)
"""The writes of a flush of two tables, in order."""
_WRITES = frozenset(
    {"save_flush_state", "save_flushed_table", "note_flushed", "put_object", "send"}
)


class Killed(BaseException):
    """The process is gone; nothing may catch this."""


class Mortal:
    """A port that works until its process is killed, after some number of writes in all."""

    def __init__(self, port: object, life: list[int]) -> None:
        self._port = port
        self._life = life

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if name not in _WRITES:
            return method

        def write(*arguments: Any) -> Any:
            if not self._life[0]:
                raise Killed
            self._life[0] -= 1
            return method(*arguments)

        return write


def flush_here(tenant: Tenant, writes: int) -> int:
    """Flush in this process, which is killed before its next write after ``writes``.

    Returns:
        How many writes were left over.
    """
    aws = tenant.aws
    life = [writes]
    caller = DynamoCaller(aws.region or "", aws.endpoint)
    buffer: Any = Mortal(DynamoBuffer(aws.output("BufferTable"), caller), life)
    objects: Any = Mortal(S3Objects(aws.output("LakeBucket"), aws.client("s3")), life)
    queue: Any = Mortal(SqsQueue(aws.output("AnnounceQueueUrl"), aws.client("sqs")), life)
    Flusher(buffer, objects, queue, ParquetEncoder(), queue).flush(tenant.gateway)
    return life[0]


def fill(tenant: Tenant, first: int = 0) -> None:
    """Push ten rows to each of the two tables, in one commit."""
    tenant.push(
        [
            tenant.make(Op.INSERT, f"r{number}", {"n": number}, table=table)
            for number in range(first, first + 10)
            for table in TABLES
        ],
        atomic=True,
    )


def claims(tenant: Tenant) -> list[dict[str, Any]]:
    objects = bucket(tenant)
    keys = objects.list_objects(f"claims/{tenant.gateway}/")
    claims = [json.loads(objects.get_object(key)) for key in keys]
    return sorted(claims, key=lambda claim: (claim["table"], int(claim["after"])))


def bucket(tenant: Tenant) -> S3Objects:
    return S3Objects(tenant.aws.output("LakeBucket"), tenant.aws.client("s3"))
