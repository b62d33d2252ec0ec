"""What administrators send and read of flushes and of what waits, as JSON Schema."""

from __future__ import annotations

from typing import Final

from lakesync.core.flushing import (
    BUDGETS_MAX,
    EVERY_S_MAX,
    FLUSH_BYTES_MAX,
    FLUSH_BYTES_MIN,
    FORMATS,
)
from lakesync.runtime.api.shapes import (
    COUNT,
    FLAG,
    NAME,
    STAMP,
    TEXT,
    Schema,
    list_of,
    object_of,
)

_BYTES: Final[Schema] = {
    "type": "integer",
    "minimum": FLUSH_BYTES_MIN,
    "maximum": FLUSH_BYTES_MAX,
}
_FLUSHING: Final[dict[str, Schema]] = {
    "everyS": {
        "type": "integer",
        "minimum": 0,
        "maximum": EVERY_S_MAX,
        "description": "How long few commits may wait; 0: until the schedule's next run.",
    },
    "bytes": {
        "anyOf": [{"const": 0}, _BYTES],
        "description": "From how many bytes on nothing waits; 0: the stack's threshold.",
    },
    "tables": {
        "type": "object",
        "additionalProperties": _BYTES,
        "maxProperties": BUDGETS_MAX,
        "description": "By table, the bytes from which it is flushed before the others.",
    },
    "flushFormat": {
        "enum": list(FORMATS),
        "description": "How objects of batches are written; JSON for people.",
    },
}
_METRICS: Final[dict[str, Schema]] = {"gateway": TEXT, "tables": list_of(NAME), "headHlc": STAMP}
_NUMBERS: Final[dict[str, Schema]] = {
    "configVersion": COUNT,
    "flushedHlc": STAMP,
    "unflushedBytes": COUNT,
    "unflushedAgeMs": COUNT,
    "lanes": COUNT,
    "shards": {"type": "object"},
}

FLUSH_COMPONENTS: Final[dict[str, Schema]] = {
    "Flushed": object_of(
        {"flushed": {"const": True}},
        {"batches": COUNT, "deltas": COUNT, "watermark": STAMP, "table": NAME},
    ),
    "Flushing": object_of({}, _FLUSHING) | {"additionalProperties": False},
    "FlushingSaved": object_of({"saved": {"const": True}, **_FLUSHING}),
    "Metrics": object_of(_METRICS, _NUMBERS),
    "TableMetrics": object_of(
        _METRICS,
        {
            **_NUMBERS,
            "byTable": {
                "type": "object",
                "additionalProperties": object_of(
                    {"unflushedBytes": COUNT, "unflushedDeltas": COUNT},
                    {
                        "moreUnflushed": FLAG
                        | {
                            "description": "So much waits that it was not "
                            "all read: the numbers are the least."
                        },
                        "rows": COUNT
                        | {
                            "description": "Rows that are known, also deleted ones "
                            "that are remembered; not of events."
                        },
                        "moreRows": FLAG | {"description": "There are more than were counted."},
                    },
                ),
            },
        },
    ),
}
