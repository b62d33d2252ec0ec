"""Column maps: what becomes of columns, whichever form a row is in. Laws Y1-Y3."""

from __future__ import annotations

import hashlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.column_map import (
    NO_MAP,
    ColumnMap,
    hashed,
    map_delta,
    map_from_stored,
    map_schema,
    map_state,
    map_to_json,
)
from lakesync.core.delta import canonical
from lakesync.core.merge import EMPTY, apply, as_read, fold, join, view
from lakesync.declare.schemas import read_schema
from tests.support.builders import delete, insert, update
from tests.support.strategies import row_deltas

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState


@st.composite
def column_maps(draw: st.DrawFn) -> ColumnMap:
    """Any map of the columns that `row_deltas` have, and that it could be declared as."""
    columns = list("pqr")
    drop = draw(st.sets(st.sampled_from(columns)))
    left = [column for column in columns if column not in drop]
    targets = draw(st.permutations(["p", "q", "x", "y", "z", "k"]))
    renamed = draw(st.sets(st.sampled_from(left))) if left else set()
    rename = dict(zip(sorted(renamed), targets, strict=False))
    free = [name for name in targets if name not in rename.values()]
    constant = draw(st.dictionaries(st.sampled_from(free), st.integers(0, 2).map(canonical)))
    hashes = draw(st.sets(st.sampled_from(left))) if left else set()
    return ColumnMap(
        MappingProxyType(rename), frozenset(drop), MappingProxyType(constant), frozenset(hashes)
    )


def _comparable(column_map: ColumnMap, state: RowState) -> Any:
    """Return a state without who wrote its constants: a row does not know who inserted it."""
    columns = {
        name: (stamp, "" if name in column_map.constant else client, value)
        for name, (stamp, client, value) in state.columns.items()
    }
    return state._replace(columns=columns)


def _without_ties(deltas: list[Delta]) -> list[Delta]:
    """Leave out what a broken client writes: other values under one stamp."""
    seen: dict[tuple[int, str], Delta] = {}
    return [one for one in deltas if seen.setdefault((one.hlc, one.client_id), one) is one]


@pytest.mark.law("Y1")
@given(column_map=column_maps(), deltas=row_deltas.map(_without_ties), delete_wins=st.booleans())
def test_mapped_deltas_merge_to_the_mapped_row(
    column_map: ColumnMap, deltas: list[Delta], *, delete_wins: bool
) -> None:
    by_deltas = fold([map_delta(column_map, one, delete_wins=delete_wins) for one in deltas])
    by_row = map_state(column_map, fold(deltas), delete_wins=delete_wins)
    seen = [view(as_read(row, delete_wins=delete_wins)) for row in (by_row, fold(deltas))]

    assert _comparable(column_map, by_deltas) == _comparable(column_map, by_row)
    assert (seen[0] is None) == (seen[1] is None), "no row comes or goes by a map"


@pytest.mark.law("Y1")
@given(column_maps(), row_deltas.map(_without_ties), st.data())
def test_order_of_mapped_deltas_does_not_matter(
    column_map: ColumnMap, deltas: list[Delta], data: st.DataObject
) -> None:
    mapped = [map_delta(column_map, delta) for delta in deltas]
    shuffled = data.draw(st.permutations(mapped))
    cut = data.draw(st.integers(0, len(mapped)))

    assert fold(shuffled) == fold(mapped)
    assert join(fold(shuffled[:cut]), fold(shuffled[cut:])) == fold(mapped)
    assert [map_delta(column_map, delta) for delta in deltas] == mapped, "the same ids each time"


@pytest.mark.law("Y1")
@given(column_maps(), row_deltas)
def test_repeated_delta_changes_nothing_after_mapping(
    column_map: ColumnMap, deltas: list[Delta]
) -> None:
    for delta in deltas:
        mapped = map_delta(column_map, delta)
        state = apply(EMPTY, mapped)
        assert apply(state, mapped) is state
        assert (mapped.op, mapped.columns) == (delta.op, delta.columns) or column_map != NO_MAP


@pytest.mark.law("Y3")
def test_columns_are_renamed_dropped_hashed_and_added() -> None:
    column_map = map_from_stored(
        {
            "rename": {"total": "amount"},
            "drop": ["note"],
            "constant": {"origin": "web"},
            "hash": ["email", "total"],
        }
    )
    mapped = map_delta(
        column_map, insert(total=7, note="hush", email="a@b.c", age=None, row="r1", at=9)
    )

    digest = hashlib.sha256(b"a@b.c").hexdigest()
    assert mapped.values == {
        "amount": hashlib.sha256(b"7").hexdigest(),
        "email": digest,
        "age": None,
        "origin": "web",
    }
    assert hashed(canonical("a@b.c")) == canonical(digest)
    assert map_delta(column_map, insert(email=None)).values["email"] is None
    assert map_delta(column_map, delete()) == delete()
    assert map_to_json(column_map)["rename"] == {"total": "amount"}
    assert map_from_stored(map_to_json(column_map)) == column_map


@pytest.mark.law("Y3")
def test_unmapped_column_is_kept_unless_its_name_is_taken() -> None:
    column_map = ColumnMap(MappingProxyType({"a": "b"}), constant={"c": canonical(1)})

    assert map_delta(column_map, insert(a=1, new=2, B=3, C=4)).values == {"b": 1, "new": 2, "c": 1}
    assert map_delta(column_map, update(B=3)).values == {"c": 1}


@pytest.mark.law("Y3")
def test_a_schema_is_mapped_with_its_keys() -> None:
    schema = read_schema(
        {
            "table": "orders",
            "columns": [
                {"name": "id", "type": "string", "nullable": False},
                {"name": "total", "type": "number"},
                {"name": "note", "type": "string"},
                {"name": "age", "type": "integer"},
            ],
            "primaryKey": ["id"],
            "externalIdColumn": "id",
            "partition": ["note"],
        }
    )
    column_map = ColumnMap(
        MappingProxyType({"id": "order_id"}),
        frozenset({"note"}),
        MappingProxyType({"origin": canonical("web"), "live": canonical(True)}),
        frozenset({"age"}),
    )
    mapped = map_schema(column_map, schema)

    assert [(one.name, one.type) for one in mapped.columns] == [
        ("order_id", "string"), ("total", "number"), ("age", "string"),
        ("live", "boolean"), ("origin", "string"),
    ]  # fmt: skip
    assert (mapped.primary_key, mapped.external_id_column) == (("order_id",), "order_id")
    assert mapped.partition == ()
    assert map_schema(NO_MAP, schema) is schema
