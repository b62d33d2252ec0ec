"""Merge laws M1-M7 and M10: docs/spec/merge.md."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.delta import Delta, Op
from lakesync.core.merge import EMPTY, RowState, apply, as_read, fold, join, state_of, view
from lakesync.wire.records import encode_row_state
from tests.support.builders import delete, insert, update
from tests.support.oracle import expected_row
from tests.support.strategies import FEW_CLIENTS, deltas, row_delta, row_deltas, row_states


@pytest.mark.law("M1")
@given(row_states, row_states, row_states)
def test_join_is_associative(a: RowState, b: RowState, c: RowState) -> None:
    assert join(join(a, b), c) == join(a, join(b, c))


@pytest.mark.law("M1")
@given(row_states, row_states)
def test_join_is_commutative(a: RowState, b: RowState) -> None:
    assert join(a, b) == join(b, a)


@pytest.mark.law("M1")
@given(row_states)
def test_join_is_idempotent_and_empty_is_its_unit(a: RowState) -> None:
    assert join(a, a) == join(a, EMPTY) == join(EMPTY, a) == a


@pytest.mark.law("M2")
@given(row_states, row_delta)
def test_apply_is_join_with_the_state_of_the_delta(state: RowState, delta: Delta) -> None:
    assert apply(state, delta) == join(state, state_of(delta))


@pytest.mark.law("M2")
@given(deltas())
def test_applying_any_delta_to_the_empty_state_gives_the_deltas_state(delta: Delta) -> None:
    assert apply(EMPTY, delta) == state_of(delta)


@pytest.mark.law("M3")
@given(row_states, row_delta)
def test_apply_returns_the_same_object_exactly_when_nothing_changes(
    state: RowState, delta: Delta
) -> None:
    after = apply(state, delta)

    assert (after is state) == (after == state)


@pytest.mark.law("M3")
@given(row_states, row_delta)
def test_a_repeated_delta_changes_nothing(state: RowState, delta: Delta) -> None:
    once = apply(state, delta)

    assert apply(once, delta) is once


@pytest.mark.law("M3")
@given(row_states, row_delta)
def test_apply_does_not_modify_its_input_state(state: RowState, delta: Delta) -> None:
    before = encode_row_state(state)
    apply(state, delta)

    assert encode_row_state(state) == before


@pytest.mark.law("M4")
@given(row_deltas, st.data())
def test_any_order_and_repetition_of_deltas_gives_the_same_bytes(
    made: list[Delta], data: st.DataObject
) -> None:
    repeats = data.draw(st.lists(st.sampled_from(made), max_size=4)) if made else []
    delivered = data.draw(st.permutations(made + repeats))

    assert encode_row_state(fold(delivered)) == encode_row_state(fold(made))


@pytest.mark.law("M4")
@given(row_deltas, st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_any_grouping_of_deltas_gives_the_same_bytes(made: list[Delta], places: list[int]) -> None:
    groups: list[list[Delta]] = [[], [], []]
    for place, delta in zip(places, made, strict=False):
        groups[place].append(delta)

    joined = functools.reduce(join, map(fold, groups))

    assert encode_row_state(joined) == encode_row_state(fold(made))


@pytest.mark.law("M4")
@given(row_deltas, row_deltas)
def test_merging_onto_a_state_equals_merging_all_deltas(
    first: list[Delta], then: list[Delta]
) -> None:
    assert fold(then, fold(first)) == fold(first + then)


@pytest.mark.law("M5")
@pytest.mark.parametrize(
    ("loser", "winner"),
    [
        pytest.param(
            update(at=1, client="z", title="old"),
            update(at=2, client="a", title="new"),
            id="the later stamp",
        ),
        pytest.param(
            update(at=1, client="a", title="z"),
            update(at=1, client="b", title="a"),
            id="at one stamp, the greater client id",
        ),
        pytest.param(
            update(at=1, client="z", title="z"),
            update(at=1, client="\u00e9", title="a"),
            id="a client id beyond ASCII is greater than any within",
        ),
        pytest.param(
            update(at=1, client="\uffee", title="z"),
            update(at=1, client="\U0001f600", title="a"),
            id="client ids by UTF-8 bytes, not by UTF-16 code units",
        ),
        pytest.param(
            update(at=1, client="a", title="a"),
            update(at=1, client="ab", title="a"),
            id="a longer client id that begins with the other",
        ),
        pytest.param(
            update(at=1, title=10),
            update(at=1, title=9),
            id="one stamp and one client: the greater bytes, not the greater number",
        ),
        pytest.param(
            update(at=1, title="\uffee"),
            update(at=1, title="\U0001f600"),
            id="text by UTF-8 bytes too",
        ),
    ],
)
def test_the_greater_write_wins_in_either_order(loser: Delta, winner: Delta) -> None:
    assert view(fold([loser, winner])) == view(fold([winner, loser])) == dict(winner.columns)


@pytest.mark.law("M5")
def test_client_ids_are_ordered_by_their_utf8_bytes() -> None:
    assert sorted(FEW_CLIENTS) == sorted(FEW_CLIENTS, key=str.encode)


@pytest.mark.law("M6")
@given(row_deltas)
def test_merged_row_equals_the_naive_computation(made: list[Delta]) -> None:
    assert view(fold(made)) == expected_row(made)


A, B, X = b'"a"', b'"b"', b'"x"'


@pytest.mark.law("M6")
@pytest.mark.parametrize(
    ("made", "row"),
    [
        pytest.param([], None, id="no delta, no row"),
        pytest.param([insert(at=1)], {}, id="an insert without columns is a row"),
        pytest.param([update(at=1, p="a")], {"p": A}, id="an update alone makes a row"),
        pytest.param([update(at=1)], None, id="an update without columns makes none"),
        pytest.param([insert(at=1, p="a"), delete(at=2)], None, id="a delete hides the row"),
        pytest.param([insert(at=2, p="a"), delete(at=2)], None, id="a delete wins a tie"),
        pytest.param([delete(at=1)], None, id="a delete alone makes no row"),
        pytest.param(
            [insert(at=1, p="a", q="b"), delete(at=2), update(at=3, p="x")],
            {"p": X},
            id="an update newer than the delete brings back only what is newer",
        ),
        pytest.param(
            [insert(at=1, p="a"), update(at=3, p="x"), delete(at=2)],
            {"p": X},
            id="a late delete hides only what is older",
        ),
        pytest.param(
            [insert(at=1, p="a"), delete(at=3), update(at=2, p="x")],
            None,
            id="an update older than the delete stays hidden",
        ),
        pytest.param(
            [insert(at=1, p="a", q="b"), delete(at=2), insert(at=3, p="x")],
            {"p": X},
            id="a new insert starts over",
        ),
        pytest.param(
            [insert(at=1, p="a"), delete(at=3), insert(at=2, p="x"), delete(at=1)],
            None,
            id="an older insert and an older delete change nothing",
        ),
        pytest.param(
            [insert(at=1, p="a"), update(at=2, client="y", q="b")],
            {"p": A, "q": B},
            id="two clients that write different columns both keep their write",
        ),
        pytest.param([update(at=1, p=None)], {"p": b"null"}, id="null is a value"),
    ],
)
def test_view_of_merged_deltas_is_the_expected_row(
    made: list[Delta], row: dict[str, bytes] | None
) -> None:
    assert view(fold(made)) == row == expected_row(made)


@pytest.mark.law("M7")
@given(row_deltas)
def test_row_state_holds_nothing_that_its_delete_covers(made: list[Delta]) -> None:
    state = fold(made)

    assert state.deleted == max((d.hlc for d in made if d.op is Op.DELETE), default=0)
    assert state.alive == 0 or state.alive > state.deleted
    assert all(hlc > state.deleted for hlc, _, _ in state.columns.values())


@pytest.mark.law("M7")
@given(row_deltas, row_deltas)
def test_later_deltas_merge_correctly_onto_a_normalised_state(
    first: list[Delta], then: list[Delta]
) -> None:
    assert view(fold(then, fold(first))) == expected_row(first + then)


@pytest.mark.law("M7")
@given(row_states)
def test_join_of_a_state_with_itself_has_the_same_bytes(state: RowState) -> None:
    assert encode_row_state(join(state, state)) == encode_row_state(state)


@pytest.mark.law("M10")
@given(made=row_deltas, delete_wins=st.booleans())
def test_row_read_with_or_without_delete_wins_equals_the_naive_computation(
    made: list[Delta], *, delete_wins: bool
) -> None:
    read = as_read(fold(made), delete_wins=delete_wins)

    assert view(read) == expected_row(made, delete_wins=delete_wins)


@pytest.mark.law("M10")
@given(state=row_states, delete_wins=st.booleans())
def test_as_read_returns_the_state_or_its_tombstone(state: RowState, *, delete_wins: bool) -> None:
    read = as_read(state, delete_wins=delete_wins)

    assert as_read(read, delete_wins=delete_wins) is read
    assert read is state or (delete_wins and read == RowState(0, state.deleted, {}))


@pytest.mark.law("M10")
@given(row_deltas, row_delta)
def test_update_never_creates_or_revives_a_row_in_a_delete_wins_table(
    made: list[Delta], delta: Delta
) -> None:
    before = as_read(fold(made), delete_wins=True)
    after = as_read(fold([*made, delta]), delete_wins=True)

    if delta.op is Op.UPDATE:
        assert (view(before) is None) == (view(after) is None)
    if delta.op is not Op.INSERT and view(before) is None:
        assert view(after) is None


@pytest.mark.law("M10")
@pytest.mark.parametrize(
    ("made", "row"),
    [
        pytest.param([insert(at=1, p="a"), update(at=2, p="b")], {"p": B}, id="as anywhere"),
        pytest.param([update(at=1, p="a")], None, id="an update alone makes no row"),
        pytest.param([update(at=2, p="b"), insert(at=1)], {"p": B}, id="until the insert comes"),
        pytest.param(
            [insert(at=1, p="a"), delete(at=2), update(at=3, p="b")],
            None,
            id="an update newer than the delete brings nothing back",
        ),
        pytest.param(
            [insert(at=1, p="a"), update(at=3, p="b"), delete(at=2)],
            None,
            id="nor does one that came before it",
        ),
        pytest.param(
            [insert(at=1, p="a", q="a"), delete(at=2), update(at=3, p="b"), insert(at=4, q="x")],
            {"p": B, "q": X},
            id="an insert shows all that is newer than the delete",
        ),
        pytest.param(
            [insert(at=1, p="a"), delete(at=2), update(at=4, p="b"), insert(at=3, q="x")],
            {"p": B, "q": X},
            id="whether the update is newer than it or not",
        ),
        pytest.param([delete(at=2), insert(at=2)], None, id="a delete wins a tie"),
    ],
)
def test_view_of_a_delete_wins_table_is_the_expected_row(
    made: list[Delta], row: dict[str, bytes] | None
) -> None:
    assert view(as_read(fold(made), delete_wins=True)) == row
