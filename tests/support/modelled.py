"""The buffer on the model of DynamoDB that `benchmarks.scale` measures with, taking no time."""

from __future__ import annotations

import threading
from random import Random

from benchmarks.scale.dynamo import Dynamo
from benchmarks.scale.ports import OneCaller
from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer


class LockedModel:
    """The model behind a lock, for several threads: `lakesync.buffer.caller.Send`."""

    def __init__(self) -> None:
        self.dynamo = Dynamo(OneCaller(), Random(0))
        self._lock = threading.Lock()

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        with self._lock:
            return self.dynamo(headers, body)


def modelled_buffer() -> DynamoBuffer:
    return DynamoBuffer("lakesync-buffer", DynamoCaller("us-east-1", send=LockedModel()))
