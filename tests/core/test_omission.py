"""lakesync.core.visibility: which columns are left out, by claims alone, and what is left then."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.delta import Delta, Op, checked_delta, make_delta
from lakesync.core.merge import fold
from lakesync.core.rules import Claim, ClaimFilter, Omission, SyncRules
from lakesync.core.visibility import (
    EVERYTHING,
    NOTHING,
    OTHERS,
    Omissions,
    Viewer,
    delta_without,
    state_without,
)
from tests.core.test_visibility import CLAIMS, MINE, bucket

HR = ClaimFilter(Claim(("role",)), "eq", "hr")
PAY = Omission(frozenset({"salary", "iban"}), frozenset({"staff"}), (HR,))


def viewer(*omit: Omission, buckets: Any = (), **claims: Any) -> Viewer:
    return Viewer(SyncRules(1, tuple(buckets), omit), CLAIMS | claims)


@pytest.mark.law("V12")
class TestWho:
    def test_column_is_omitted_unless_the_claims_match_an_exception(self) -> None:
        assert viewer(PAY).omitted("staff") == {"salary", "iban"}
        assert viewer(PAY, role="dev").omitted("staff") == {"salary", "iban"}
        assert viewer(PAY, role="hr").omitted("staff") == set()
        assert viewer(PAY).omitted("todos") == set()

    def test_omission_without_exceptions_applies_to_every_client(self) -> None:
        always = Omission(frozenset({"salary"}))

        assert viewer(always, role="hr").omitted("staff") == {"salary"}

    @pytest.mark.parametrize(
        ("op", "value", "claim", "sent"),
        [
            ("in", ("hr", "admin"), "admin", True),
            ("eq", "hr", ["dev", "hr"], True),
            ("neq", "hr", ["dev", "hr"], False),
            ("neq", "hr", ["dev", "ops"], True),
            ("gte", 3, 3, True),
            ("gte", 3, 2, False),
            ("gte", 3, "many", False),
            ("eq", "hr", None, False),
            ("neq", "hr", None, False),
            ("eq", "hr", {"is": "hr"}, False),
            ("like", (), "hr", False),
            ("eq", Claim(("org", "id")), 7, True),
            ("eq", Claim(("nobody",)), 7, False),
        ],
    )
    def test_claims_are_compared_like_columns(
        self, op: str, value: Any, claim: object, *, sent: bool
    ) -> None:
        omission = Omission(frozenset({"x"}), unless=(ClaimFilter(Claim(("role",)), op, value),))

        assert (viewer(omission, role=claim).omitted("t") == set()) is sent

    def test_all_conditions_of_an_exception_must_hold_and_each_omission_counts(self) -> None:
        both = Omission(frozenset({"x"}), unless=(HR, ClaimFilter(Claim(("level",)), "gt", 2)))

        assert viewer(both, role="hr").omitted("t") == {"x"}
        assert viewer(both, role="hr", level=3).omitted("t") == set()
        assert viewer(PAY, Omission(frozenset({"salary"})), role="hr").omitted("staff") == {
            "salary"
        }

    @pytest.mark.parametrize(("table", "column"), [("Staff", "SALARY"), ("staff", "Salary")])
    def test_omission_covers_other_spellings_of_table_and_column(
        self, table: str, column: str
    ) -> None:
        eyes = viewer(PAY)
        change = make_delta(Op.UPDATE, table, "r", {column: 9}, client_id="c", hlc=1)

        assert eyes.shown(change) is None


@pytest.mark.law("V12")
class TestScope:
    def test_omissions_are_part_of_the_scope(self) -> None:
        plain, omitting = viewer().scope(), viewer(PAY).scope()

        assert omitting.changed(plain) == ["staff"]
        assert viewer(PAY, role="hr").scope() == plain

    def test_clients_that_are_sent_the_same_columns_have_the_same_scope(self) -> None:
        again = Omission(frozenset({"IBAN", "salary"}), frozenset({"staff"}))

        assert viewer(again).scope() == viewer(PAY, role="dev", more=1).scope()

    def test_omission_for_all_tables_covers_tables_that_nothing_names(self) -> None:
        everywhere = Omission(frozenset({"note"}))
        rows = [bucket(MINE, tables="staff"), bucket(tables="todos")]
        eyes = viewer(PAY, everywhere, buckets=rows)

        assert eyes.omitted("staff") == {"salary", "iban", "note"}
        assert eyes.omitted("todos") == eyes.omitted(OTHERS) == {"note"}
        assert eyes.scope().of("other") == NOTHING
        assert EVERYTHING not in {eyes.scope().of("staff"), eyes.scope().of("todos")}
        assert viewer(everywhere).scope().of("any") != EVERYTHING

    def test_omission_does_not_change_the_scope_of_a_hidden_table(self) -> None:
        rows = [bucket(tables="todos")]

        assert viewer(PAY, buckets=rows).scope() == viewer(buckets=rows).scope()

    def test_viewer_sees_everything_only_if_no_column_is_omitted(self) -> None:
        assert not viewer(PAY).sees_everything
        assert viewer(PAY).sees_every_row
        assert viewer(PAY).sees_rows_of("staff")
        assert viewer(PAY, role="hr").sees_everything


# --- what is left ---------------------------------------------------------------------------------

names = st.sampled_from(["a", "B", "c"])


@st.composite
def changes(draw: st.DrawFn) -> Delta:
    op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE]))
    columns = {} if op is Op.DELETE else draw(st.dictionaries(names, st.integers(0, 3)))
    who, hlc = draw(st.sampled_from(["x", "y"])), draw(st.integers(1, 9))
    return make_delta(op, "t", "r", columns, client_id=who, hlc=hlc)


@pytest.mark.law("V12")
@given(st.lists(changes(), max_size=8), st.frozensets(st.sampled_from(["a", "b", "c"])))
def test_deltas_without_omitted_columns_merge_to_the_row_without_them(
    deltas: list[Delta], omitted: frozenset[str]
) -> None:
    left = [part for delta in deltas if (part := delta_without(delta, omitted)) is not None]

    assert fold(left) == state_without(fold(deltas), omitted)
    for part in left:
        assert part == checked_delta(*part[:6]), "a delta whose id is true of it"
        assert not {name.lower() for name, _ in part.columns} & omitted


@pytest.mark.law("V12")
@given(st.lists(st.frozensets(names, min_size=1), max_size=3), st.lists(st.booleans(), max_size=3))
def test_column_is_omitted_if_any_omission_covers_it(
    named: list[frozenset[str]], excepted: list[bool]
) -> None:
    pairs = list(zip(named, excepted, strict=False))
    omit = [
        Omission(columns, unless=(ClaimFilter(Claim(("ok",)), "eq", value=is_excepted),))
        for columns, is_excepted in pairs
    ]

    due = {name.lower() for columns, is_excepted in pairs if not is_excepted for name in columns}
    assert Omissions(omit, {"ok": True}).of("t") == due
