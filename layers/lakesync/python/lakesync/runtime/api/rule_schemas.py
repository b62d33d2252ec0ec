"""Sync rules as they are sent and read, as JSON Schema; see `lakesync.runtime.api.schemas`."""

from __future__ import annotations

from typing import Final

from lakesync.core.rules import (
    BUCKETS_MAX,
    FILTERS_MAX,
    OMISSIONS_MAX,
    OMITTED_COLUMNS_MAX,
    OPERATORS,
    VALUES_MAX,
)
from lakesync.runtime.api.shapes import NAME, TEXT, Schema, list_of, object_of, reference

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
