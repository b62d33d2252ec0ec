"""What administrators send and read, as JSON Schema; see `lakesync.runtime.api.document`."""

from __future__ import annotations

from typing import Final

from lakesync.core.column_types import TYPES
from lakesync.core.config import BUDGETS_MAX, EVERY_S_MAX, FLUSH_BYTES_MAX, FLUSH_BYTES_MIN, FORMATS
from lakesync.core.delta import COLUMNS_MAX
from lakesync.core.destinations import ARCHIVE_DAYS_MAX, ARCHIVE_KINDS, DELETES, KINDS, SECRET
from lakesync.core.destinations import NAME as DESTINATION_NAME_FORM
from lakesync.core.flows import GATEWAY, SCHEDULE_MINUTES_MAX
from lakesync.core.rules import (
    BUCKETS_MAX,
    FILTERS_MAX,
    OMISSIONS_MAX,
    OMITTED_COLUMNS_MAX,
    OPERATORS,
    VALUES_MAX,
    WRITERS,
)
from lakesync.core.schema import DESCRIPTION_BYTES_MAX, SOURCE_TABLE_CHARACTERS_MAX
from lakesync.gateway.access import USER_BYTES_MAX
from lakesync.gateway.admin_changes import TRIAL_ROWS_SHOWN_MAX
from lakesync.ports import AuditOutcome
from lakesync.runtime.api import (
    CLIENT_ID,
    COUNT,
    FLAG,
    NAME,
    SHARD,
    STAMP,
    TEXT,
    Schema,
    list_of,
    object_of,
    reference,
)
from lakesync.runtime.api import NAME as TABLE

# --- sync rules -----------------------------------------------------------------------------------


LITERAL: Final[Schema] = {"type": ["string", "number", "boolean"], "minLength": 1}
COMPARED: Final[Schema] = {
    "description": "A literal, a list of them, or `jwt:` and a claim's dotted path.",
    "anyOf": [LITERAL, list_of(LITERAL, minItems=1, maxItems=VALUES_MAX)],
}

RULE_COMPONENTS: Final[dict[str, Schema]] = {
    "Filter": object_of(
        {
            "column": NAME,
            "op": {"type": "string", "enum": list(OPERATORS)},
            "value": COMPARED,
        }
    ),
    "Bucket": object_of(
        {
            "name": {"type": "string", "minLength": 1, "maxLength": 64},
            "tables": list_of(NAME) | {"description": "None: all tables."},
            "filters": list_of(reference("Filter"), maxItems=FILTERS_MAX),
        },
        {"write": list_of(reference("Filter"), maxItems=FILTERS_MAX)},
    ),
    "ClaimFilter": object_of(
        {
            "claim": TEXT | {"description": "A claim of the token; nested ones by a dotted path."},
            "op": {"type": "string", "enum": list(OPERATORS)},
            "value": COMPARED,
        }
    ),
    "Omission": object_of(
        {
            "tables": list_of(NAME) | {"description": "None: all tables."},
            "columns": list_of(NAME, minItems=1, maxItems=OMITTED_COLUMNS_MAX),
        },
        {
            "except": list_of(reference("ClaimFilter"), maxItems=FILTERS_MAX)
            | {"description": "Clients that pass all of these receive the columns; empty: nobody."}
        },
    ),
    "SyncRules": object_of(
        {"buckets": list_of(reference("Bucket"), maxItems=BUCKETS_MAX)},
        {
            "version": {"type": "integer", "minimum": 1},
            "omit": list_of(reference("Omission"), maxItems=OMISSIONS_MAX)
            | {"description": "Columns that are left out of what clients are sent."},
        },
    ),
}


# --- flushes --------------------------------------------------------------------------------------


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


# --- administration -------------------------------------------------------------------------------


def _only(name: str, *values: Schema) -> Schema:
    """Return an object with one member and no other."""
    return object_of({name: {"oneOf": list(values)}}) | {"additionalProperties": False}


_USER: Final = object_of(
    {"user": {"type": "string", "minLength": 1, "maxLength": USER_BYTES_MAX}}
) | {"additionalProperties": False}
_CLIENT: Final = object_of({"client": CLIENT_ID}) | {"additionalProperties": False}

ADMIN_COMPONENTS: Final[dict[str, Schema]] = {
    **RULE_COMPONENTS,
    **FLUSH_COMPONENTS,
    "Deletion": object_of(
        {
            "deletedAt": TEXT | {"description": "Nothing was accepted after."},
            "finished": FLAG | {"description": "False if time ran out: ask again."},
            "left": {
                "type": "object",
                "additionalProperties": COUNT,
                "description": "What is left, by kind; of many it is some.",
            },
            "gone": FLAG | {"description": "Nothing is left."},
            "proved": FLAG | {"description": "And nothing was under way that could write more."},
            "provableFrom": TEXT | {"description": "The time from which that can be proved."},
        }
    ),
    "Shut": object_of(
        {
            "at": {"type": "string", "format": "date-time"},
            "by": TEXT | {"description": "The administrator's user."},
        },
        {"user": TEXT, "client": TEXT},
    ),
    "AuditRecord": object_of(
        {
            "id": TEXT,
            "at": {"type": "string", "format": "date-time"},
            "who": TEXT | {"description": "The user, or the ARN of the command line's caller."},
            "role": TEXT,
            "operation": TEXT,
            "target": TEXT | {"description": "Of the gateway; empty if it is all of it."},
            "outcome": {"type": "string", "enum": [outcome.value for outcome in AuditOutcome]},
            "requestId": TEXT,
            "before": {"description": "The state; of a large one its digest and size."},
        },
        {
            "after": {"description": "The same behind the change."},
            "endedAt": {"type": "string", "format": "date-time"},
            "code": TEXT | {"description": "That of the error."},
        },
    ),
    "AuditRecords": object_of(
        {"records": list_of(reference("AuditRecord"))},
        {"next": TEXT | {"description": "The `cursor` of the next page."}},
    ),
    "Placement": object_of({"table": NAME, "shard": SHARD}, {"dryRun": FLAG})
    | {"additionalProperties": False},
    "Tables": object_of(
        {
            "tables": {"type": "object", "additionalProperties": SHARD}
            | {"description": "Each table that is not in the default shard, with its shard."},
            "shards": list_of(SHARD),
        }
    ),
    "Placed": object_of(
        {
            "saved": FLAG | {"description": "False: it was only tried."},
            "table": NAME,
            "shard": SHARD,
            "pullReadUnits": object_of({"before": COUNT, "after": COUNT})
            | {"description": "At most, of a pull that brings nothing, with all shards in use."},
            "pushWriteUnits": object_of({"before": {"type": "number"}, "after": {"type": "number"}})
            | {"description": "About, of a push of one small edit of the table."},
            "tables": {"type": "object", "additionalProperties": SHARD},
            "shards": list_of(SHARD),
        }
    ),
    "Access": object_of(
        {"revoked": list_of(reference("Shut"))},
        {
            "client": TEXT | {"description": "The one that was asked for."},
            "user": {"type": ["string", "null"], "description": "Whose it is; null: nobody's."},
        },
    ),
    "AccessChange": {
        "oneOf": [
            _only("revoke", _USER, _CLIENT),
            _only("restore", _USER, _CLIENT),
            _only("release", _CLIENT),
        ]
    },
    "SchemaColumn": object_of(
        {
            "name": NAME,
            "type": {
                "type": "string",
                "anyOf": [
                    {"enum": [name for name in TYPES if name != "decimal"]},
                    {"pattern": r"^decimal\([0-9]{1,2},[0-9]{1,2}\)$"},
                ],
            },
        },
        {
            "nullable": FLAG,
            "description": TEXT
            | {
                "maxLength": DESCRIPTION_BYTES_MAX,
                "description": "One line for who queries the lake: the column's comment there.",
            },
        },
    ),
    "TableSchema": object_of(
        {
            "table": NAME,
            "columns": list_of(reference("SchemaColumn"), minItems=1, maxItems=COLUMNS_MAX),
        },
        {
            "version": {"type": "integer", "description": "Given by the gateway, from 1."},
            "primaryKey": list_of(NAME),
            "softDelete": FLAG,
            "externalIdColumn": NAME,
            "sourceTable": TEXT | {"minLength": 1, "maxLength": SOURCE_TABLE_CHARACTERS_MAX},
            "append": FLAG | {"description": "Rows are events: written once, never changed."},
            "partition": list_of(
                TEXT
                | {
                    "pattern": r"^([a-z]+\([0-9, ]*)?[A-Za-z_][A-Za-z0-9_]*\)?$",
                    "description": "What the lake's table is partitioned by: a column, or a "
                    "transform of one: `month(day)`, `bucket(16,customer)`, `truncate(4,code)`.",
                }
            ),
            "sort": list_of(NAME),
            "keepTombstones": FLAG | {"description": "Deletions are never forgotten."},
            "deleteWins": FLAG | {"description": "No update makes a row exist. Never changes."},
        },
    ),
    "Schemas": object_of(
        {
            "schemaVersion": COUNT | {"description": "Grows with every change of a schema."},
            "tables": list_of(reference("TableSchema")),
        },
        {"strict": FLAG | {"description": "Only tables with a schema are written."}},
    ),
    "SchemaOrStrict": {
        "anyOf": [
            reference("TableSchema"),
            object_of({"strict": FLAG}) | {"additionalProperties": False},
        ]
    },
    "Removed": object_of(
        {"removed": FLAG | {"description": "False: it was only tried."}, "table": NAME}
    ),
    "Saved": object_of(
        {"saved": {"const": True}},
        {
            "version": COUNT,
            "spelled": {"type": "object", "additionalProperties": NAME}
            | {"description": "Names that were saved in the spelling in use, with that spelling."},
            "warnings": reference("Warnings"),
        },
    ),
    "Warnings": list_of(object_of({"path": TEXT, "warning": TEXT}))
    | {"description": "What is no fault of the rules, and may be a mistake."},
    "SavedOrTried": {"anyOf": [reference("Saved"), reference("Tried")]},
    "Tried": object_of(
        {
            "saved": {"const": False},
            "complete": FLAG | {"description": "False: too many rows; some were not looked at."},
            "tables": list_of(reference("TableTried")),
        },
        {"warnings": reference("Warnings")},
    ),
    "TableTried": object_of(
        {
            "table": NAME,
            "append": FLAG | {"description": "Rows are events; they are not counted."},
            "buckets": list_of(TEXT) | {"description": "Those that speak of the table."},
            "writers": {
                "enum": list(WRITERS),
                "description": "Who writes its rows: `anyone` any; whoever passes its `write` "
                "filters; or, without any, each client those that it sees, and new ones.",
            },
            "changes": FLAG | {"description": "The rules in force differ for it."},
            "omitted": list_of(NAME) | {"description": "Columns that the client is not sent."},
        },
        {
            "complete": FLAG | {"description": "False: not all of its rows were looked at."},
            "seen": reference("Rows") | {"description": "What the client would see."},
            "inForce": COUNT | {"description": "How many rows it sees by the rules in force."},
            "enter": reference("Rows") | {"description": "Of what it would see, what is new."},
            "leave": reference("Rows") | {"description": "What it would see no longer."},
        },
    ),
    "Rows": object_of(
        {
            "count": COUNT,
            "rows": list_of(
                object_of(
                    {"rowId": TEXT, "columns": {"type": "object"}},
                    {"cut": FLAG | {"description": "Columns were left out for their size."}},
                ),
                maxItems=TRIAL_ROWS_SHOWN_MAX,
            ),
        }
    ),
}


# --- destinations ---------------------------------------------------------------------------------


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
DESTINATION_NAME: Final[Schema] = {
    "type": "string",
    "pattern": f"^{DESTINATION_NAME_FORM.pattern}$",
}

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


# --- flows ----------------------------------------------------------------------------------------


_DATABASE: Final[dict[str, Schema]] = {"database": KIND["kind"], "secret": KIND["secret"]}
_THE_GATEWAY: Final[Schema] = {"enum": [GATEWAY]}
_SOURCE: Final[Schema] = {
    "oneOf": [
        _THE_GATEWAY,
        object_of({"connector": TEXT}, {"configuration": {"type": "object"}}),
        object_of(
            _DATABASE,
            {"gateway": TEXT | {"description": "Whose tables; this gateway's without it."}},
        ),
    ]
}
_DESTINATION: Final[Schema] = {
    "oneOf": [
        _THE_GATEWAY,
        object_of(
            _DATABASE,
            {name: DECLARED[name] for name in ("tableNames", "deletes")},
        ),
    ]
}
_WHAT: Final[dict[str, Schema]] = {
    "tables": DECLARED["tables"],
    "filter": DECLARED["buckets"],
    "map": DECLARED["map"],
}
_EVERY: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": SCHEDULE_MINUTES_MAX}
_WHEN: Final[dict[str, Schema]] = {
    "schedule": object_of({"everyMinutes": _EVERY}),
    "continuous": FLAG | {"description": "Each minute; from the gateway, behind each flush."},
}
_ERROR: Final[Schema] = object_of({"error": TEXT, "atMs": COUNT}, {"code": TEXT, "table": TEXT})

FLOW_COMPONENTS: Final[dict[str, Schema]] = {
    "FlowDeclared": object_of(
        {"name": DESTINATION_NAME, "source": _SOURCE, "destination": _DESTINATION}, _WHAT | _WHEN
    )
    | {"additionalProperties": False},
    "Flow": object_of(
        {
            "name": DESTINATION_NAME,
            "source": _SOURCE,
            "destination": _DESTINATION,
            **_WHAT,
            "paused": FLAG,
        },
        _WHEN,
    ),
    "FlowStatus": object_of(
        {
            "name": DESTINATION_NAME,
            "source": _SOURCE,
            "destination": _DESTINATION,
            **_WHAT,
            "paused": FLAG,
            "state": {
                "enum": ["current", "behind", "filling", "reading", "waiting", "failing", "paused"]
            },
            "deadLetters": COUNT | {"description": "Rows that could not be delivered."},
        },
        {
            **_WHEN,
            "lagS": COUNT | {"description": "How old may be what is missing there; absent: all."},
            "rows": COUNT | {"description": "Delivered rows, deletions included."},
            "polls": COUNT,
            "waiting": COUNT | {"description": "Batches that wait."},
            "waitS": COUNT,
            "jobMs": COUNT | {"description": "Since when a job has been requested, or reads."},
            "lastError": _ERROR,
        },
    ),
    "Flows": object_of({"flows": list_of(reference("FlowStatus"))}),
    "FlowAnswered": object_of(
        {"flow": reference("Flow"), "isNew": FLAG},
        {
            "message": TEXT | {"description": "By the source."},
            "tables": list_of(reference("FlowTable")) | {"description": "Of a plan."},
        },
    ),
    "FlowTable": object_of(
        {"table": TEXT},
        {
            "rows": COUNT | {"description": "Rows that were looked at; absent: not known."},
            "passing": COUNT | {"description": "Those of them that would move."},
            "hasMore": FLAG | {"description": "There are more than were looked at."},
            "columns": list_of(TEXT) | {"description": "As they would be there."},
        },
    ),
    "FlowRemoved": object_of({"removed": DESTINATION_NAME}, {"message": TEXT}),
    "FlowAction": object_of({}, {"from": {"type": "string", "format": "date-time"}})
    | {"additionalProperties": False},
    "FlowChanged": object_of({"name": DESTINATION_NAME, "action": TEXT}),
}
