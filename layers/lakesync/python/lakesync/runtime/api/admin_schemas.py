"""What administrators send and read, as JSON Schema; see `lakesync.runtime.api.schemas`."""

from __future__ import annotations

from typing import Final

from lakesync.core.column_types import TYPES
from lakesync.core.delta import COLUMNS_MAX
from lakesync.core.rules import WRITERS
from lakesync.core.schema import DESCRIPTION_BYTES_MAX, SOURCE_TABLE_CHARACTERS_MAX
from lakesync.gateway.access import USER_BYTES_MAX
from lakesync.gateway.rules_dry_run import TRIAL_ROWS_SHOWN_MAX
from lakesync.ports import AuditOutcome
from lakesync.runtime.api.flush_schemas import FLUSH_COMPONENTS
from lakesync.runtime.api.rule_schemas import RULE_COMPONENTS
from lakesync.runtime.api.shapes import (
    CLIENT_ID,
    COUNT,
    FLAG,
    NAME,
    SHARD,
    TEXT,
    Schema,
    list_of,
    object_of,
    reference,
)


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
