"""Views as Athena stores them."""

from __future__ import annotations

import base64
import json
from typing import Any


def read_document(text: str) -> dict[str, Any]:
    """Read the document of a view from its text; `ValueError` if it is none."""
    opening, closing = "/* Presto View: ", " */"
    if not text.startswith(opening) or not text.endswith(closing):
        raise ValueError("the text is not a view of Athena")
    encoded = text.removeprefix(opening).removesuffix(closing)
    document: dict[str, Any] = json.loads(base64.b64decode(encoded, validate=True))
    return document
