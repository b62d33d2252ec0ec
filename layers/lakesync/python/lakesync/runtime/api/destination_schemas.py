"""What administrators send and read of destinations, as JSON Schema."""

from __future__ import annotations

from typing import Final

from lakesync.core.archive import ARCHIVE_DAYS_MAX, ARCHIVE_KINDS
from lakesync.core.destinations import DELETES, KINDS, NAME, SECRET
from lakesync.core.rules import BUCKETS_MAX
from lakesync.runtime.api.shapes import (
    COUNT,
    FLAG,
    STAMP,
    TEXT,
    Schema,
    list_of,
    object_of,
    reference,
)
from lakesync.runtime.api.shapes import NAME as TABLE

_SECRET: Final[Schema] = {"type": "string", "pattern": f"^{SECRET.pattern}$"}
DECLARED: Final[dict[str, Schema]] = {
    "tables": list_of(TABLE) | {"description": "None: all tables."},
    "buckets": list_of(reference("Bucket"), maxItems=BUCKETS_MAX)
    | {"description": "Which rows, as in sync rules, without claims. None: all rows."},
    "tableNames": {
        "type": "object",
        "additionalProperties": TEXT,
        "description": "By table, its name there.",
    },
    "map": {
        "type": "object",
        "additionalProperties": reference("ColumnMap"),
        "description": "By table, what becomes of its columns; buckets decide before it.",
    },
    "deletes": {
        "enum": ["", *DELETES],
        "description": "Deleted rows are removed or kept; empty: as each table's schema states.",
    },
    "archive": object_of(
        {
            "secret": _SECRET,
            "afterDays": {"type": "integer", "minimum": 1, "maximum": ARCHIVE_DAYS_MAX},
        },
        {"kind": {"enum": list(ARCHIVE_KINDS), "description": "What the secret's URL is of; s3."}},
    )
    | {"description": "Where history moves when it is so old: a bucket's folder or a database."},
    "lake": FLAG
    | {"description": "False: its tables go there in place of the lake. PostgreSQL, MySQL."},
}
_OPTIONAL: Final = frozenset({"map", "archive", "lake"})
_WITHOUT_LAKE: Final = {
    "withoutLake": list_of(TEXT)
    | {"description": "Tables that do not go to the lake, or * for all."}
}
_MAP: Final = {name: shape for name, shape in DECLARED.items() if name in _OPTIONAL}
_SHOWN: Final = {name: shape for name, shape in DECLARED.items() if name not in _OPTIONAL}
KIND: Final[dict[str, Schema]] = {
    "kind": TEXT
    | {"description": f"{', '.join(KINDS)}, or a type that a package of the stack adds."},
    "secret": _SECRET | {"description": "The name of the secret with the URL, without its prefix."},
}
DESTINATION_NAME: Final[Schema] = {"type": "string", "pattern": f"^{NAME.pattern}$"}

DESTINATION_COMPONENTS: Final[dict[str, Schema]] = {
    "ColumnMap": object_of(
        {},
        {
            "rename": {"type": "object", "additionalProperties": TABLE},
            "drop": list_of(TABLE),
            "constant": {"type": "object", "description": "By column, its value in every row."},
            "hash": list_of(TABLE) | {"description": "Their SHA-256 goes there."},
        },
    )
    | {"additionalProperties": False},
    "DestinationDeclared": object_of(KIND, DECLARED),
    "Destination": object_of(
        {"name": DESTINATION_NAME, **KIND, **_SHOWN, "paused": FLAG, "declaredMs": COUNT}, _MAP
    ),
    "DestinationReport": object_of(
        {
            "name": DESTINATION_NAME,
            **KIND,
            **_SHOWN,
            "paused": FLAG,
            "declaredMs": COUNT,
            "state": {"enum": ["current", "behind", "filling", "failing", "paused"]},
            "lagMs": COUNT | {"description": "How long the oldest commit has waited; 0: none."},
            "waiting": COUNT | {"description": "Batches that wait."},
            "filling": COUNT | {"description": "Tables that are being filled."},
            "deadLetters": COUNT | {"description": "Rows that the database refuses."},
            "setAside": list_of(object_of({"claim": TEXT, "reason": TEXT})),
            "tablesDelivered": list_of(
                object_of(
                    {
                        "table": TEXT,
                        "mark": STAMP,
                        "deadLetters": COUNT,
                        "error": TEXT,
                        "atMs": COUNT,
                    },
                    {
                        "archived": STAMP
                        | {"description": "The commit up to which its archive has the history."}
                    },
                )
            ),
        },
        _MAP,
    ),
    "Destinations": object_of(
        {"destinations": list_of(reference("DestinationReport"))}, _WITHOUT_LAKE
    ),
    "DestinationRemoved": object_of({"removed": DESTINATION_NAME}, _WITHOUT_LAKE),
    "DestinationChanged": object_of({"name": DESTINATION_NAME, "action": TEXT}, {"tables": COUNT}),
}
