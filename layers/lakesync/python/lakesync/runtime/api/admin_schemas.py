"""What administrators send and read, as JSON Schema; see `lakesync.runtime.api.document`."""

from __future__ import annotations

from typing import Final

from lakesync.core.rules import WRITERS
from lakesync.declare import components
from lakesync.declare.destinations import DESTINATION_NAME, DeclaredDestination, DeclaredMap
from lakesync.declare.flows import DeclaredFlow
from lakesync.declare.schemas import DeclaredColumn, DeclaredFlushing, DeclaredStrict, DeclaredTable
from lakesync.declare.sync_rules import (
    DeclaredBucket,
    DeclaredClaimFilter,
    DeclaredFilter,
    DeclaredOmission,
    DeclaredRules,
)
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

# --- what is declared -----------------------------------------------------------------------------


DECLARED: Final = components(
    Bucket=DeclaredBucket,
    ClaimFilter=DeclaredClaimFilter,
    ColumnMap=DeclaredMap,
    DestinationDeclared=DeclaredDestination,
    Filter=DeclaredFilter,
    FlowDeclared=DeclaredFlow,
    Flushing=DeclaredFlushing,
    Omission=DeclaredOmission,
    SchemaColumn=DeclaredColumn,
    Strict=DeclaredStrict,
    SyncRules=DeclaredRules,
    TableSchema=DeclaredTable,
)


def _fields(declared: str, *without: str) -> dict[str, Schema]:
    """Return the fields of a declaration, some left out."""
    fields: dict[str, Schema] = DECLARED[declared]["properties"]
    return {name: shape for name, shape in fields.items() if name not in without}


# --- clients --------------------------------------------------------------------------------------


_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
CLIENT_COMPONENTS: Final[dict[str, Schema]] = {
    "ClientSeen": object_of(
        {
            "client": TEXT,
            "user": TEXT,
            "connections": list_of(object_of({"openedAt": _TIME, "expiresAt": _TIME})),
            "revoked": FLAG | {"description": "It or its user is revoked."},
            "behindMs": {
                "type": ["integer", "null"],
                "description": "How far behind it was when it was noted; null if it never was, or "
                "has read nothing in whole.",
            },
            "quarantined": {
                "type": ["integer", "null"],
                "description": "Edits that were refused and wait for a decision, by its own word.",
            },
            "notedAt": {"type": ["string", "null"], "format": "date-time"},
        }
    ),
    "Clients": object_of(
        {"clients": list_of(reference("ClientSeen"))},
        {"next": TEXT | {"description": "The `cursor` of the next page."}},
    ),
    "Disconnect": object_of(
        {"disconnect": object_of({"client": CLIENT_ID}) | {"additionalProperties": False}}
    )
    | {"additionalProperties": False},
    "Disconnected": object_of({"disconnected": COUNT}),
}


# --- flushes --------------------------------------------------------------------------------------


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
    "FlushingSaved": object_of({"saved": {"const": True}, **_fields("Flushing")}),
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
    **DECLARED,
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
    "Schemas": object_of(
        {
            "schemaVersion": COUNT | {"description": "Grows with every change of a schema."},
            "tables": list_of(reference("TableSchema")),
        },
        {"strict": FLAG | {"description": "Only tables with a schema are written."}},
    ),
    "SchemaOrStrict": {"anyOf": [reference("TableSchema"), reference("Strict")]},
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


_WITHOUT_LAKE: Final = {
    "withoutLake": list_of(TEXT)
    | {"description": "Tables that do not go to the lake, or * for all."}
}
_SHOWN: Final = _fields("DestinationDeclared", "map", "archive", "lake")
_MAP: Final = _fields("DestinationDeclared", *_SHOWN)
_NAME: Final[Schema] = DESTINATION_NAME.schema

DESTINATION_COMPONENTS: Final[dict[str, Schema]] = {
    "Destination": object_of({"name": _NAME, **_SHOWN, "paused": FLAG, "declaredMs": COUNT}, _MAP),
    "DestinationReport": object_of(
        {
            "name": _NAME,
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
    "DestinationRemoved": object_of({"removed": _NAME}, _WITHOUT_LAKE),
    "DestinationChanged": object_of({"name": _NAME, "action": TEXT}, {"tables": COUNT}),
}


# --- flows ----------------------------------------------------------------------------------------


_FLOW_SHOWN: Final = _fields("FlowDeclared", "schedule", "continuous")
_WHEN: Final = _fields("FlowDeclared", *_FLOW_SHOWN)
_ERROR: Final[Schema] = object_of({"error": TEXT, "atMs": COUNT}, {"code": TEXT, "table": TEXT})

FLOW_COMPONENTS: Final[dict[str, Schema]] = {
    "Flow": object_of({**_FLOW_SHOWN, "paused": FLAG}, _WHEN),
    "FlowStatus": object_of(
        {
            **_FLOW_SHOWN,
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
    "FlowRemoved": object_of({"removed": _NAME}, {"message": TEXT}),
    "FlowAction": object_of({}, {"from": {"type": "string", "format": "date-time"}})
    | {"additionalProperties": False},
    "FlowChanged": object_of({"name": _NAME, "action": TEXT}),
}
