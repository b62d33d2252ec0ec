"""Rows and commits as lines of JSON, gzip outside. Pure.

A row's line has its columns in canonical JSON, and its merge state for LakeSync itself:
``{"row_id":"r1","n":1,"title":"x","lakesync_state":"…"}``.
"""

from __future__ import annotations

import base64
import gzip
import json
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.adapters.sql.conversion import deleted_at
from lakesync.adapters.sql.definition import DELETED_AT, PREFIX, sql_name
from lakesync.adapters.sql.ledger import REASON_CHARACTERS_MAX
from lakesync.adapters.sql.values import Unfit, sql_value
from lakesync.core.merge import view
from lakesync.core.schema import ROW_ID
from lakesync.core.values import NULL, canonical
from lakesync.wire.records import encode_records
from lakesync.wire.row_state import decode_row_state, encode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lakesync.adapters.database import PlacedDelta
    from lakesync.adapters.sql.definition import Definition
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState

STATE: Final = f"{PREFIX}state"
_STATE_FIELD: Final = b",%b:" % canonical(STATE)
_LEVEL: Final = 1
_BEGINS: Final = b'{"row_id":'
_DECODER: Final = json.JSONDecoder()


class Line(NamedTuple):
    """A row as a file has it."""

    text: bytes
    hidden: bool
    refusal: str = ""


def row_line(definition: Definition, row_id: str, state: RowState) -> Line:
    """Return a row's line; a row that does not fit its columns has no columns, and is hidden."""
    encoded = base64.b64encode(encode_row_state(state))
    values = view(definition.as_read(state))
    fields = [(ROW_ID, canonical(row_id))]
    hidden, refusal = False, ""
    if values is None:
        fields.append((DELETED_AT, canonical(deleted_at(state).isoformat())))
        hidden = not definition.keeps_deleted
    else:
        try:
            columns = [(sql_name(name), _checked(definition, name, kind, values.get(name)))
                       for name, kind in sorted(definition.stored_columns().items())
                       if name != ROW_ID]  # fmt: skip
            fields += [(name, value) for name, value in columns if value is not None]
        except Unfit as exc:
            hidden, refusal = True, str(exc)[:REASON_CHARACTERS_MAX]
    fields.append((STATE, b'"%b"' % encoded))
    text = b",".join(b"%b:%b" % (canonical(name), value) for name, value in fields)
    return Line(b"{%b}" % text, hidden, refusal)


def as_it_was(former: bytes, refused: Line) -> Line:
    """Return the line of a refused row that was shown before: it keeps its former columns.

    Its state, which is the last field, is the newest.
    """
    columns, newest = (line.rpartition(_STATE_FIELD) for line in (former, refused.text))
    return Line(b"".join((columns[0], *newest[1:])), hidden=False, refusal=refused.refusal)


def _checked(definition: Definition, name: str, kind: str, value: bytes | None) -> bytes | None:
    try:
        sql_value(kind, value)
    except Unfit as exc:
        raise Unfit(f"column {name}: {exc}") from exc
    if name in definition.keys and value in {None, NULL}:
        raise Unfit(f"column {name}: a primary key is never empty")
    return value


def state_in(text: bytes) -> RowState:
    """Return the state that a line holds."""
    return decode_row_state(base64.b64decode(json.loads(text)[STATE]))


def file_of(lines: Iterable[bytes]) -> bytes:
    """Return a file of lines; the same lines give the same bytes."""
    return gzip.compress(b"".join(b"%b\n" % line for line in lines), _LEVEL, mtime=0)


def rows_in(body: bytes) -> dict[str, bytes]:
    """Return the lines of a file by row id."""
    return {_row_id(line): line for line in lines_in(body)}


def commit_lines(deltas: Sequence[PlacedDelta]) -> list[bytes]:
    """Return whole commits as a file has them."""
    return [
        json.dumps([commit, base64.b64encode(encode_records(d for _, d in placed)).decode()])
        .encode()
        for commit, placed in groupby(deltas, key=lambda placed: placed.position.commit)
    ]  # fmt: skip


def commits_in(body: bytes) -> list[tuple[Stamp, bytes]]:
    """Return the commits of a file with their records."""
    read = map(json.loads, lines_in(body))
    return [(commit, base64.b64decode(records)) for commit, records in read]


def _row_id(line: bytes) -> str:
    """Return a line's row id, which comes first, without reading the others."""
    row_id: str = _DECODER.raw_decode(line.decode(), len(_BEGINS))[0]
    return row_id


def lines_in(body: bytes) -> list[bytes]:
    """Return the lines of a file."""
    return gzip.decompress(body).splitlines()
