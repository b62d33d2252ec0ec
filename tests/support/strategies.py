"""Hypothesis strategies for values, deltas and pushes.

`deltas` ranges over everything that is valid; `row_deltas` deals out of a small deck (one row, few
stamps, clients, columns and values), so that ties, overlaps and exact repeats are common.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import CHANGES, Op, make_delta
from lakesync.core.merge import fold
from lakesync.core.messages import (
    DeltaOutcome,
    OutcomeKind,
    Progress,
    Pull,
    PullPage,
    Push,
    PushReceipt,
)
from lakesync.core.schema import Column, TableSchema
from lakesync.errors import BY_CODE
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState

EXACT_INT_MAX = (1 << 53) - 1

texts = st.text(st.characters(codec="utf-8"), max_size=20)
"""Any Unicode text without half surrogate pairs."""

any_text = st.text(st.sampled_from('a\u00e9\U0001f600"\\\ud800\udbff\udc00\udfff'), max_size=8)
"""Half surrogate pairs too: JSON can spell them, UTF-8 cannot."""

scalars: SearchStrategy[object] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-EXACT_INT_MAX, EXACT_INT_MAX),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)

json_values: SearchStrategy[object] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
"""Any value that a column can hold."""

identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,63}", fullmatch=True)
"""Names of tables and columns."""

ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
"""Row ids and client ids."""

column_types = st.sampled_from(
    ["string", "number", "boolean", "json", "null", "integer", "timestamp", "date", "bytes"]
) | st.builds("decimal({},{})".format, st.integers(5, 38), st.integers(0, 5))


@st.composite
def table_schemas(draw: st.DrawFn) -> TableSchema:
    columns = draw(
        st.lists(
            st.builds(
                Column,
                identifiers,
                column_types,
                st.booleans(),
                st.sampled_from(["", "When it's due: é😀"]),
            ),
            min_size=1,
            max_size=5,
            unique_by=lambda column: column.name.lower(),
        )
    )
    names = [column.name for column in columns]
    folders = [column.name for column in columns if column.type not in {"json", "null", "bytes"}]
    return TableSchema(
        draw(identifiers),
        tuple(columns),
        draw(st.integers(1, 99)),
        draw(st.lists(st.sampled_from(names), unique=True).map(tuple)),
        draw(st.booleans()),
        draw(st.none() | st.sampled_from(names)),
        draw(st.none() | identifiers),
        append := draw(st.booleans()),
        tuple(draw(st.permutations(folders)))[: draw(st.integers(0, 5))],
        draw(st.booleans()),
        not append and draw(st.booleans()),
        tuple(draw(st.permutations(folders)))[: draw(st.integers(0, 3))],
    )


stamps = st.integers(1, STAMP_MAX)

ops = st.sampled_from(CHANGES)


@st.composite
def deltas(draw: st.DrawFn, *, tables: SearchStrategy[str] = identifiers) -> Delta:
    op = draw(ops)
    names = draw(st.lists(identifiers, max_size=4, unique_by=str.lower))
    columns = {} if op is Op.DELETE else {name: draw(json_values) for name in names}
    return make_delta(op, draw(tables), draw(ids), columns, client_id=draw(ids), hlc=draw(stamps))


FEW_CLIENTS = ("a", "b", "\u00e9", "\uffee", "\U0001f600")
"""The last two order one way by UTF-8 bytes, the other way by UTF-16 code units."""

FEW_VALUES: tuple[object, ...] = (None, 0, 1, "x", "\u00e9", [1], {"k": 1})


@st.composite
def _row_delta(draw: st.DrawFn) -> Delta:
    op = draw(ops)
    few_columns = st.dictionaries(st.sampled_from("pqr"), st.sampled_from(FEW_VALUES), max_size=3)
    return make_delta(
        op,
        "todos",
        "r1",
        {} if op is Op.DELETE else draw(few_columns),
        client_id=draw(st.sampled_from(FEW_CLIENTS)),
        hlc=draw(st.integers(1, 6)),
    )


row_delta: SearchStrategy[Delta] = _row_delta()
"""One delta of one row, out of the small deck."""

row_deltas: SearchStrategy[list[Delta]] = st.lists(row_delta, max_size=8)
"""Deltas of one row; the same delta may occur again."""

row_states: SearchStrategy[RowState] = row_deltas.map(fold)
"""A state that some deltas of one row lead to."""


@st.composite
def pushes(draw: st.DrawFn, *, deltas_max: int = 4) -> Push:
    items = draw(st.lists(deltas(), max_size=deltas_max))
    return Push(
        draw(ids),
        tuple(enumerate(items)),
        draw(st.integers(0, STAMP_MAX)),
        draw(st.booleans()),
        epoch=draw(st.none() | texts),
        own_cursor=draw(st.booleans()),
    )


pulls = st.builds(
    Pull, ids, st.integers(0, STAMP_MAX), st.integers(1, 10_000), texts, texts,
    own_cursor=st.booleans(), at_least=st.integers(0, STAMP_MAX) | st.just(STAMP_MAX),
)  # fmt: skip

errors = st.builds(
    lambda kind, message, field: kind(message, field=field),
    st.sampled_from(list(BY_CODE.values())),
    texts,
    st.none() | texts.filter(bool),
)
"""Any error that an answer can carry."""

_refusals = st.builds(
    DeltaOutcome, st.integers(0, 9_999), texts, st.just(OutcomeKind.REFUSED), errors
)
_duplicates = st.builds(DeltaOutcome, st.integers(0, 9_999), texts, st.just(OutcomeKind.DUPLICATE))

receipts = st.builds(
    PushReceipt,
    st.integers(0, STAMP_MAX),
    st.integers(0, 10_000),
    st.lists(_refusals | _duplicates, max_size=4).map(tuple),
    st.integers(0, 1 << 60),
)


counts = st.integers(0, 2**53 - 1)


@st.composite
def pages(draw: st.DrawFn) -> tuple[PullPage, list[Delta]]:
    commits = draw(st.lists(st.lists(deltas(), min_size=1, max_size=3), max_size=3))
    sent = [delta for commit in commits for delta in commit]
    first = draw(st.just(0) | stamps)
    page = PullPage(
        tuple(map(encode_records, commits)),
        len(sent),
        draw(st.integers(0, STAMP_MAX)),
        draw(st.booleans()),
        draw(texts),
        draw(texts),
        schema_version=draw(st.integers(0, 2**32 - 1)),
        behind_ms=draw(st.integers(0, 2**32 - 1)),
        first=first,
        previous=draw(st.integers(0, first - 1)) if first else None,
        progress=draw(st.none() | st.builds(Progress, counts, counts)),
    )
    return page, sent
