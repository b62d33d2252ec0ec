"""Reads claims strictly: which batches wait to be applied to the lake. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import check_identifier
from lakesync.core.names import staged_column
from lakesync.core.schema import schema_from_json
from lakesync.core.stored import check_format
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.schema import TableSchema

CLAIMS: Final = "claims/"
_STAMP = re.compile(r"[0-9]{1,20}")
_GATEWAY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Batch:
    """One table's deltas of the commits in ``(after, last]``. Valid by construction of `parse`."""

    claim_key: str
    gateway: str
    table: str
    after: Stamp
    last: Stamp
    object_key: str
    deltas: int
    append: bool
    schema: TableSchema | None
    columns: tuple[tuple[str, str], ...]
    """Each column that occurs: its name on the wire, and in the object."""

    @property
    def name(self) -> str:
        """The batch's identity, as marks name it."""
        return f"{self.gateway}/{self.table}/{self.after:020d}-{self.last:020d}"


def parse_claim(key: str, text: bytes) -> Batch:
    """Read a claim.

    Raises:
        ValidationFailed: it is not one, and never will be; `field` names the part at fault.
        SchemaMismatch: its schema is not sound.
        UpgradeRequired: only a later release can read it.
    """
    body = _object(text)
    check_format(_typed(body, "version", int), "a claim")
    after, last = _stamp(body, "after"), _stamp(body, "last")
    if after >= last:
        raise ValidationFailed("a claim's range ends before it begins", field="last")
    table = check_identifier(_typed(body, "table", str), "table")
    return Batch(
        claim_key=key,
        gateway=_gateway(body),
        table=table,
        after=after,
        last=last,
        object_key=_typed(body, "object", str),
        deltas=_typed(body, "deltas", int),
        append=_typed(body, "append", bool),
        schema=_schema(table, body.get("schema")),
        columns=_columns(body.get("columns")),
    )


def _object(text: bytes) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError as exc:
        raise ValidationFailed("a claim must be JSON") from exc
    if not isinstance(body, dict):
        raise ValidationFailed("a claim must be a JSON object")
    return body


def _typed(body: Mapping[str, Any], field: str, kind: type) -> Any:
    value = body.get(field)
    if type(value) is not kind:
        raise ValidationFailed(f"a claim's {field} must be a {kind.__name__}", field=field)
    return value


def _gateway(body: Mapping[str, Any]) -> str:
    gateway = str(_typed(body, "gateway", str))
    if _GATEWAY.fullmatch(gateway) is None:
        raise ValidationFailed("a claim's gateway is no gateway id", field="gateway")
    return gateway


def _stamp(body: Mapping[str, Any], field: str) -> Stamp:
    text = body.get(field)
    if not isinstance(text, str) or not _STAMP.fullmatch(text) or int(text) > STAMP_MAX:
        raise ValidationFailed(f"a claim's {field} must be a stamp in digits", field=field)
    return int(text)


def _schema(table: str, body: Any) -> TableSchema | None:
    if body is None:
        return None
    if not isinstance(body, dict):
        raise ValidationFailed("a claim's schema must be an object or null", field="schema")
    return schema_from_json({**body, "table": table})


def _columns(body: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(body, dict):
        raise ValidationFailed("a claim's columns must be an object", field="columns")
    for written, name in body.items():
        check_identifier(written, "columns")
        if name != staged_column(written):
            raise ValidationFailed(
                f"column {written} is {staged_column(written)} in an object", field="columns"
            )
    return tuple(sorted(body.items()))
