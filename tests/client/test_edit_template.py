"""What a template makes of an edit is what everything else makes of it."""

from __future__ import annotations

import sqlite3
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.client.storage.app_table import AppTable
from lakesync.client.storage.edits import EditTemplate
from lakesync.client.storage.file_layout import CLIENTS
from lakesync.client.storage.stored_state import States
from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import DELTA_BYTES_MAX, Op, make_delta
from lakesync.core.merge import fold
from lakesync.errors import DeltaTooLarge, ValidationFailed
from lakesync.wire.records import encode_record
from tests.support.strategies import json_values

CLIENT = 'per%cent "quoted" %b'
NAMES = tuple("abcdefgh")
texts = st.sampled_from(["", "x", 'a "b"', "é", "\n\\", "y" * 50, "z" * 253, "z" * 254, "z" * 300])
columns = st.dictionaries(st.sampled_from(NAMES), st.one_of(json_values, texts), min_size=1)


def _template(
    names: tuple[str, ...], table: AppTable, op: Op = Op.INSERT
) -> tuple[EditTemplate, States]:
    connection = sqlite3.connect(":memory:")
    connection.execute(CLIENTS)
    states = States(connection)
    return EditTemplate(op, table, names, CLIENT, states), states


def _table(names: tuple[str, ...], unseen: int = 0, forms: int = 0) -> AppTable:
    """Return a table of which some columns have no room in SQLite."""
    of_table: dict[str, str | None] = dict.fromkeys(names[:unseen])
    made = AppTable(1, "todos", "todos", of_table | {name: name for name in names[unseen:]})
    made.forms = dict.fromkeys(names, forms)
    made.prepare()
    return made


@given(
    columns,
    st.permutations(NAMES),
    st.integers(0, 3),
    st.integers(0, 15),
    st.sampled_from(["r1", 'é"%b']),
)
def test_a_template_encodes_an_insert_exactly_as_make_delta_does(
    written: dict[str, Any], order: list[str], unseen: int, forms: int, row_id: str
) -> None:
    table, again = (_table(tuple(order), unseen, forms) for _ in range(2))
    template, states = _template(tuple(sorted(written)), table)
    expected = make_delta(
        Op.INSERT, "todos", row_id, dict(sorted(written.items())), client_id=CLIENT, hlc=77
    )

    delta, run, values, cells = template.encode(row_id, 77, written)

    assert delta == expected
    assert type(delta) is type(expected)
    assert run == encode_record(delta)
    assert template.state(77, values) == states.encode(table.places, fold([delta]))
    cells = template.row(values, cells)
    same = again.cells(row_id, dict(delta.columns))
    assert (cells, list(map(type, cells))) == (same, list(map(type, same)))
    assert table.forms == again.forms


@pytest.mark.parametrize("op", [Op.UPDATE, Op.DELETE])
def test_a_template_encodes_updates_and_deletes_exactly_as_make_delta_does(op: Op) -> None:
    written = {"a": 1} if op is Op.UPDATE else {}
    template, _ = _template(tuple(written), _table(NAMES), op)

    delta, run, _, _ = template.encode("r1", 5, written)

    assert delta == make_delta(op, "todos", "r1", written, client_id=CLIENT, hlc=5)
    assert run == encode_record(delta)


def test_a_row_state_of_a_table_with_thousands_of_columns_is_encoded() -> None:
    names = tuple(f"c{number}" for number in range(2_500))
    template, states = _template(names[-1:], table := _table(names))

    state = template.state(5, [b"1"])

    assert states.decode(table.places, state).columns == {names[-1]: (5, CLIENT, b"1")}


def test_a_template_refuses_oversized_edits_and_invalid_row_ids_and_stamps() -> None:
    template, _ = _template(("a",), _table(NAMES))

    with pytest.raises(DeltaTooLarge):
        template.encode("r1", 5, {"a": "x" * (DELTA_BYTES_MAX - 1)})
    assert template.encode("r1", 5, {"a": "x" * (DELTA_BYTES_MAX - 2)})
    for row_id, hlc in (("", 5), ("é" * 257, 5), ("r1", 0), ("r1", STAMP_MAX + 1)):
        with pytest.raises(ValidationFailed):
            template.encode(row_id, hlc, {"a": 1})


@pytest.mark.parametrize(
    ("value", "says"),
    [(float("nan"), "NaN"), ("\ud800", "surrogate"), (date(2026, 5, 17), "declare")],
)
def test_a_template_refuses_an_invalid_value_naming_its_column(value: object, says: str) -> None:
    template, _ = _template(("a", "b"), _table(NAMES))

    with pytest.raises(ValidationFailed, match=says) as refused:
        template.encode("r1", 5, {"a": "fine", "b": value})

    assert refused.value.field == "columns.b"
