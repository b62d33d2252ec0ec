"""Parameters against their JSON Schema, before anything runs.

Schemas are written by an administrator, parameters by a client: patterns are matched in linear
time, references to other documents are never fetched, and no value of a client is repeated in a
fault.
"""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import ActionInvalid, Fault, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    import jsonschema_rs

SCHEMA_BYTES_MAX: Final = 16_384
"""The JSON Schema of one action's parameters."""
FAULTS_MAX: Final = 5
"""Faults of parameters that are listed at once."""
_VALIDATORS_REMEMBERED: Final = 256


def check_schema(schema: Mapping[str, Any]) -> None:
    """Refuse an invalid JSON Schema.

    Raises:
        ValidationFailed: it is invalid, is too large, or refers to another document.
    """
    text = json.dumps(schema)
    if len(text) > SCHEMA_BYTES_MAX:
        raise ValidationFailed(f"a schema of parameters has at most {SCHEMA_BYTES_MAX} bytes")
    try:
        _validator(text)
    except (ValueError, RecursionError) as exc:
        raise ValidationFailed(f"it is not a JSON Schema: {str(exc).splitlines()[0]}") from exc


def check_params(schema: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Refuse parameters that do not fit.

    Raises:
        ActionInvalid: they do not; the message names the faults and where they are.
    """
    errors = islice(_validator(json.dumps(schema)).iter_errors(params), FAULTS_MAX)
    faults = [
        Fault("".join(f".{part}" for part in error.instance_path), error.message)
        for error in errors
    ]
    if faults:
        listed = "; ".join(f"params{fault.path}: {fault.message}" for fault in faults)
        raise ActionInvalid(f"the parameters do not fit: {listed}", field=f"params{faults[0].path}")


@lru_cache(maxsize=_VALIDATORS_REMEMBERED)
def _validator(schema: str) -> jsonschema_rs.Validator:
    # Imported where it is first needed: it is 15 MB of machine code.
    import jsonschema_rs  # noqa: PLC0415

    return jsonschema_rs.validator_for(
        schema,
        validate_formats=True,
        offline=True,
        mask="the value",
        pattern_options=jsonschema_rs.RegexOptions(),
    )
