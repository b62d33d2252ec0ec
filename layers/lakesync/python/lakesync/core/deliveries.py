"""Deliveries: the claims that say which batch waits for a destination, and their pace. Pure.

Claims are small objects, read strictly. Each destination has its own claim of a batch. The process
that applied the batch there removes that claim, and nothing else. All claims of one batch have the
same content. Claims that ask a destination to erase some rows completely are stored beside them,
and removed once the erasure is done. Law E9: ``docs/spec/erasure.md``.

The pace of a destination is how many deltas one write to it takes, and how often: the cost depends
on its kind. BigQuery changes a table by jobs that take seconds each, and allows 1,500 changes of a
table a day. Every write there is one change of each table involved, however many deltas it
contains, so small batches are gathered. The same holds for S3 and Iceberg, where changing a row
rewrites its file. Law D15: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.clock import STAMP_MAX
from lakesync.core.config import WRITES, check_format
from lakesync.core.names import check_identifier, staged_column
from lakesync.core.schema import schema_from_stored
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.schema import TableSchema

# --- claims of batches ----------------------------------------------------------------------------


CLAIMS: Final = "claims/"
"""The prefix of the lake's claims: ``claims/GATEWAY/TABLE/RANGE.json``."""
CLAIMS_FAILED: Final = "claims-failed/"
"""The prefix of the lake's claims that can never succeed, each with its reason."""
DELIVERIES: Final = "deliveries/"
"""The prefix of claims of declared destinations:
``deliveries/GATEWAY/DESTINATION/TABLE/RANGE.json``."""
FILL: Final = "fill.json"
"""The name of a claim that asks for a filling: of a table, or of a whole destination."""
RETRY: Final = "retry.json"
"""The name of a claim that asks to retry a table's dead letters."""
STAGING: Final = "staging/"
"""The prefix of the objects of batches: ``staging/GATEWAY/TABLE/RANGE.parquet``, or ``.json``."""
DELIVERIES_FAILED: Final = "deliveries-failed/"
"""The prefix of claims of declared destinations that can never succeed, each with its reason."""
_CLAIM_PARTS: Final = 4
_STAMP = re.compile(r"[0-9]{1,20}")
_STAGED = re.compile(rf"{STAGING}([^/]+)/([^/]+)/([0-9]{{20}})-([0-9]{{20}})\.(?:parquet|json)")
_GATEWAY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def deliveries_of(gateway: str, destination: str = "", table: str = "") -> str:
    """Return the prefix of a gateway's deliveries, or of one destination's, or of one table's."""
    parts = [part for part in (gateway, destination, table) if part]
    return DELIVERIES + "".join(f"{part}/" for part in parts)


class DeliveryPlace(NamedTuple):
    """Where claims of declared destinations are: under a destination, or under one table of it."""

    gateway: str
    destination: str
    table: str = ""

    @property
    def prefix(self) -> str:
        """The prefix of the keys of the claims."""
        return deliveries_of(*self)


def delivery_place(key: str) -> DeliveryPlace:
    """Return the place that contains a claim, or that a prefix names.

    Raises:
        ValidationFailed: it is not a key of a delivery.
    """
    parts = key.removeprefix(DELIVERIES).split("/")
    if not key.startswith(DELIVERIES) or len(parts) not in {3, 4} or not all(parts[:-1]):
        raise ValidationFailed(f"{key[:200]!r} is not a claim of a delivery", field="claim")
    return DeliveryPlace(*parts[:-1])


def announcement(
    claim: str, object_key: str = "", *, more: Sequence[str] = (), archive: bool = False
) -> str:
    """Return the message that announces claims: of bounded size, whatever the schema is.

    Args:
        claim: its key, or the place where claims may be.
        object_key: the batch's object, if the message concerns one batch.
        more: keys of further claims of the same gateway. A release before this one reads only the
            first; the others wait for their tables' next announcement, or for the sweep.
        archive: whether it says that history there may be old, and not that claims wait.
    """
    said: dict[str, object] = {"claim": claim, "object": object_key}
    said |= {"more": list(more)} if more else {}
    return json.dumps(said | ({"archive": True} if archive else {}))


def gateway_of_message(body: str) -> str:
    """Return the gateway that a message of our queues concerns; empty if it concerns all or none.

    A request names it; an announcement names a claim, whose key does.
    """
    said = _said(body)
    named = said.get("gateway") or str(said.get("claim", "")).partition("/")[2].partition("/")[0]
    return named if isinstance(named, str) and _GATEWAY.fullmatch(named) else ""


def claims_of_message(body: str) -> tuple[str, ...]:
    """Return the keys of the claims that a message announces to the lake.

    None if it announces no batch, or is written otherwise.
    """
    said = _said(body)
    more = said.get("more", [])
    named = [said.get("claim"), *(more if isinstance(more, list) else [None])]
    keys = tuple(key for key in named if isinstance(key, str) and _is_claim(key))
    return keys if len(keys) == len(named) else ()


def tables_of_message(body: str) -> frozenset[str]:
    """Return the tables whose batches a message announces to the lake, as ``gateway/table``.

    None if it announces no batch, or is written otherwise.
    """
    return frozenset("/".join(key.split("/")[1:3]) for key in claims_of_message(body))


def _is_claim(key: str) -> bool:
    parts = key.split("/")
    return key.startswith(CLAIMS) and len(parts) == _CLAIM_PARTS and all(parts)


def _said(body: str) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def claimed_last(key: str) -> Stamp:
    """Return the last commit of the batch that a claim's key names; 0 for other claims."""
    last = key.rpartition("/")[2].removesuffix(".json").rpartition("-")[2]
    return int(last) if last.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class Batch:
    """One table's deltas of the commits in ``(after, last]``. Valid if made by `parse_claim`."""

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
    """Each column that occurs: its name on the wire, and its name in the object."""

    @property
    def name(self) -> str:
        """The batch's identity, by which marks name it."""
        return f"{self.gateway}/{self.table}/{self.after:020d}-{self.last:020d}"


def staged_batch(key: str, schema: TableSchema | None) -> Batch | None:
    """Return the batch whose object has a key, as far as the key says; None for other keys.

    Args:
        key: the object's.
        schema: the table's current schema.
    """
    match = _STAGED.fullmatch(key)
    if match is None:
        return None
    gateway, table, after, last = match.groups()
    is_append = bool(schema and schema.append)
    return Batch("", gateway, table, int(after), int(last), key, 0, is_append, schema, ())


@dataclass(frozen=True, slots=True)
class FillClaim:
    """A claim that asks for a filling, with the progress of that filling."""

    until: Stamp = 0
    """The commit at which the filling ends; 0 until it has begun."""
    place: str | None = ""
    """The row behind which rows are written next; None once all are written."""
    again: bool = False
    """Whether the destination contained anything before."""
    checked: str | None = ""
    """The row behind which rows are checked next for removal; None once all are checked."""

    def to_json(self) -> str:
        """Return the claim's text."""
        return json.dumps(
            {
                "version": WRITES,
                "until": str(self.until),
                "place": self.place,
                "again": self.again,
                "checked": self.checked,
            }
        )


def read_fill_claim(body: bytes) -> FillClaim:
    """Read what `FillClaim.to_json` gave.

    Raises:
        UpgradeRequired: only a later release can read it.
    """
    stored = json.loads(body)
    check_format(stored["version"], "a claim")
    return FillClaim(int(stored["until"]), stored["place"], stored["again"], stored["checked"])


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
        raise ValidationFailed("a claim's gateway is not a gateway id", field="gateway")
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
    try:
        stored = schema_from_stored({**body, "table": table})
        # Made again, and so checked.
        return replace(stored, columns=tuple(map(replace, stored.columns)))
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise ValidationFailed("a claim's schema is malformed", field="schema") from exc


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


# --- claims of erasures ---------------------------------------------------------------------------


_END: Final = ".erase.json"
"""The suffix of their names; no claim of a batch has it."""


def rows_name(row_ids: Iterable[str]) -> str:
    """Return a name for some rows that does not contain them: another one for others."""
    return sha256(json.dumps(sorted(row_ids)).encode()).hexdigest()[:32]


def erasure_name(row_ids: Iterable[str]) -> str:
    """Return the name of a claim: equal for the same rows, different for others."""
    return rows_name(row_ids) + _END


def is_erasure(key: str) -> bool:
    """Return by its key whether a claim asks for an erasure."""
    return key.endswith(_END)


def erasure_to_json(row_ids: Iterable[str]) -> str:
    """Return a claim's text."""
    return json.dumps({"version": WRITES, "rows": sorted(row_ids)})


def read_erasure(body: bytes) -> tuple[str, ...]:
    """Read the row ids of a claim.

    Raises:
        UpgradeRequired: only a later release can read it.
    """
    stored = json.loads(body)
    check_format(stored["version"], "a claim")
    return tuple(stored["rows"])


# --- pace -----------------------------------------------------------------------------------------


GATHER_MS: Final = 120_000
"""The interval between two writes of a table in BigQuery, unless a full write waits. It makes 720 a
day, so half of a day's changes are left for fillings, repeats and other uses."""
GATHER_DELTAS_MAX: Final = 20_000
"""Deltas of one write to BigQuery, S3 or Iceberg, where batches are gathered."""
GATHER_BYTES_MAX: Final = 16_000_000
"""Bytes of objects or rows that one write there gathers; the last one may exceed it."""
GATHER_ROWS_MAX: Final = 10_000
"""Rows of one write to BigQuery, S3 or Iceberg, where rows are written instead of deltas."""
JOB_ROWS_MAX: Final = 200_000
"""Rows of one write by a job that reads a flow: they are in its memory together."""
JOB_BYTES_MAX: Final = 256_000_000
"""Bytes of values that one such write gathers; the last page may exceed it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How batches are gathered for a kind of destination. The default is one by one, at once."""

    gather_ms: int = 0
    """The interval between two writes of a table, unless a full write waits."""
    deltas: int = 1
    """Consecutive batches are combined into one write up to this number of deltas."""
    content_bytes: int = 1
    """A write of at least this size takes no more."""
    rows: int = 1
    """Rows of one write, instead of deltas; more if more are read at a time."""
    job_rows: int = 0
    """Rows of one write by a job that reads a flow; 0 if the job's tasks write in parallel."""


ONE_BY_ONE: Final = Pace()
GATHERED: Final = Pace(
    GATHER_MS, GATHER_DELTAS_MAX, GATHER_BYTES_MAX, GATHER_ROWS_MAX, JOB_ROWS_MAX
)


def pace_of(kind: str) -> Pace:
    """Return the pace of a kind of destination."""
    return GATHERED if kind in {"bigquery", "s3", "iceberg"} else ONE_BY_ONE
