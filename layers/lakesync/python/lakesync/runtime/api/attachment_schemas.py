"""What is sent and read about attachments, as JSON Schema; see `lakesync.runtime.api.schemas`."""

from __future__ import annotations

from typing import Final

from lakesync.core.attachments import PARTS_MAX, REFERENCE_CHARS_MAX
from lakesync.core.delta import ROW_ID_BYTES_MAX
from lakesync.gateway.attachments import UPLOAD_CHARS_MAX
from lakesync.runtime.api.shapes import COUNT, EPOCH, FLAG, NAME, TEXT, Schema, list_of, object_of
from lakesync.runtime.api.shapes import reference as component

_REFERENCE: Final[Schema] = {
    "type": "string",
    "maxLength": REFERENCE_CHARS_MAX,
    "pattern": "^attachment:[0-9a-f]{32}:[0-9a-f]{64}:[0-9]{1,10}:[a-z0-9].*/[a-z0-9].*$",
    "description": "The text that names the file in a row: docs/spec/attachments.md.",
}
_DIGEST: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}

ATTACHMENT_COMPONENTS: Final[dict[str, Schema]] = {
    "AttachmentUpload": object_of(
        {"reference": _REFERENCE},
        {
            "parts": list_of(_DIGEST, maxItems=PARTS_MAX)
            | {"description": "SHA-256 of each part of 16 MiB; needed if there are several."},
            "upload": {
                "type": "string",
                "maxLength": UPLOAD_CHARS_MAX,
                "description": "`upload` of the last answer, to continue it.",
            },
            "epoch": EPOCH | {"description": "Refused (409) if it is another gateway's."},
        },
    ),
    "SignedRequest": object_of(
        {
            "url": TEXT | {"description": "Whoever has it may use it, for 15 minutes."},
            "headers": {
                "type": "object",
                "additionalProperties": TEXT,
                "description": "To be sent exactly so.",
            },
        },
        {"part": COUNT | {"description": "Which part of the file to PUT; the first is 1."}},
    ),
    "AttachmentUploadState": object_of(
        {
            "stored": FLAG | {"description": "All of it is there, and is what it is named by."},
            "requests": list_of(component("SignedRequest"))
            | {"description": "PUT these parts, then ask again."},
            "partsStored": COUNT,
        },
        {"upload": TEXT},
    ),
    "AttachmentPlace": object_of(
        {
            "table": NAME,
            "rowId": {"type": "string", "minLength": 1, "maxLength": ROW_ID_BYTES_MAX},
            "column": NAME,
            "reference": _REFERENCE,
        }
    ),
}
