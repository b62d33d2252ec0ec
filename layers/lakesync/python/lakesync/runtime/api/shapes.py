"""Building blocks of the API's JSON Schemas."""

from __future__ import annotations

from typing import Any, Final

from lakesync.core.delta import CLIENT_ID_BYTES_MAX
from lakesync.core.epoch import EPOCH_LENGTH_MAX

Schema = dict[str, Any]

NAME: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}$"}
SHARD: Final[Schema] = {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,31}$"}
STAMP: Final[Schema] = {
    "type": "string",
    "pattern": "^[0-9]{1,18}$",
    "examples": ["112589990684262400"],
    "description": "A 64-bit stamp as decimal digits.",
}
CLIENT_ID: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": CLIENT_ID_BYTES_MAX}
TEXT: Final[Schema] = {"type": "string"}
EPOCH: Final[Schema] = {"type": "string", "maxLength": EPOCH_LENGTH_MAX}
FLAG: Final[Schema] = {"type": "boolean"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}


def object_of(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """Return an object with these members; others may be there too."""
    return {
        "type": "object",
        "required": list(required),
        "properties": required | (optional or {}),
    }


def list_of(items: Schema, **bounds: int) -> Schema:
    """Return a list of such items."""
    return {"type": "array", "items": items, **bounds}


def reference(name: str) -> Schema:
    """Point to one of `COMPONENTS`."""
    return {"$ref": f"#/components/schemas/{name}"}
