"""lakesync.core.visibility: which rows a client sees, and what a change is to it."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.delta import canonical
from lakesync.core.rules import OPERATORS, Bucket, Claim, Filter, SyncRules
from lakesync.core.visibility import NOTHING, OTHERS, SCOPE_CHARS_MAX, Transition, Viewer, scope_of

CLAIMS = {"sub": "ann", "org": {"id": 7, "teams": ["red", "blue"]}, "none": None, "odd": {"a": 1}}
MINE = Filter("owner", "eq", Claim(("sub",)))


def row(**columns: object) -> dict[str, bytes]:
    return {name: canonical(value) for name, value in columns.items()}


def viewer(*buckets: Bucket, claims: dict[str, Any] | None = None) -> Viewer:
    return Viewer(SyncRules(1, buckets), CLAIMS if claims is None else claims)


def bucket(*filters: Filter, tables: str = "", **more: Any) -> Bucket:
    return Bucket("bucket", frozenset(tables.split()), filters, **more)


@pytest.mark.law("V1")
class TestBuckets:
    def test_without_buckets_every_existing_row_is_visible(self) -> None:
        assert viewer().sees("todos", row())
        assert not viewer().sees("todos", None)

    def test_all_filters_of_a_bucket_must_match(self) -> None:
        eyes = viewer(bucket(MINE, Filter("size", "gt", 3)))

        assert eyes.sees("todos", row(owner="ann", size=4))
        assert not eyes.sees("todos", row(owner="ann", size=3))
        assert not eyes.sees("todos", row(owner="bob", size=4))

    def test_row_is_visible_if_any_bucket_matches(self) -> None:
        eyes = viewer(bucket(MINE), bucket(Filter("public", "eq", value=True)))

        assert eyes.sees("todos", row(owner="ann", public=False))
        assert eyes.sees("todos", row(owner="bob", public=True))
        assert not eyes.sees("todos", row(owner="bob", public=False))

    def test_a_table_that_no_bucket_names_is_hidden(self) -> None:
        eyes = viewer(bucket(tables="todos lists"))

        assert eyes.sees("todos", row())
        assert not eyes.sees("users", row())

    @pytest.mark.parametrize("op", OPERATORS)
    @pytest.mark.parametrize("claim", ["\ud800", 10**400, float("inf"), float("nan")])
    def test_a_claim_that_no_column_can_hold_matches_nothing(self, claim: object, op: str) -> None:
        eyes = viewer(
            bucket(Filter("owner", op, Claim(("team",)))), claims={"team": claim, "sub": "ann"}
        )

        assert not eyes.sees("todos", row(owner="ann"))
        assert not eyes.may_see("todos")

    @pytest.mark.parametrize("claim", [2**53 + 1, 1 - 2**63, 10**200 + 1])
    def test_claim_with_more_digits_than_a_double_matches_its_text(self, claim: int) -> None:
        eyes = viewer(
            bucket(Filter("owner", "eq", Claim(("team",)))), claims={"team": [claim], "sub": "ann"}
        )

        assert eyes.sees("todos", row(owner=str(claim)))
        assert not eyes.sees("todos", row(owner=str(claim + 1)))
        assert not eyes.sees("todos", row(owner=float(claim)))

    @pytest.mark.parametrize(
        ("path", "value", "seen"),
        [
            ("org.id", 7, True),
            ("org.id", "7", True),
            ("org.teams", "blue", True),
            ("org.teams", "green", False),
            ("org", "7", False),
            ("none", None, False),
            ("nobody", "x", False),
            ("odd", 1, False),
            ("sub.sub", "ann", False),
        ],
    )
    def test_claims_are_read_by_path_and_lists_are_alternatives(
        self, path: str, value: object, *, seen: bool
    ) -> None:
        seer = viewer(bucket(Filter("kept", "eq", Claim(tuple(path.split("."))))))

        assert seer.sees("todos", row(kept=value)) == seen

    def test_claims_may_be_any_mapping(self) -> None:
        claims = MappingProxyType({"org": MappingProxyType({"id": 7})})
        seer = Viewer(SyncRules(1, (bucket(Filter("kept", "eq", Claim(("org", "id")))),)), claims)

        assert seer.sees("todos", row(kept=7))

    @pytest.mark.parametrize("op", OPERATORS)
    def test_a_missing_claim_matches_nothing(self, op: str) -> None:
        seer = viewer(bucket(Filter("kept", op, Claim(("nobody",)))))

        assert not seer.sees("todos", row(kept="x"))


@pytest.mark.law("V4")
@pytest.mark.parametrize(
    ("before", "after", "due"),
    [
        ("ann", "ann", Transition.CHANGE),
        ("bob", "ann", Transition.ENTER),
        (None, "ann", Transition.ENTER),
        ("ann", "bob", Transition.LEAVE),
        ("ann", None, Transition.END),
        ("bob", "bob", Transition.NOTHING),
        ("bob", None, Transition.NOTHING),
        (None, "bob", Transition.NOTHING),
        (None, None, Transition.NOTHING),
    ],
)
def test_transition_compares_visibility_before_and_after(
    before: str | None, after: str | None, due: Transition
) -> None:
    rows = [None if owner is None else row(owner=owner) for owner in (before, after)]

    assert viewer(bucket(MINE)).transition("todos", *rows) is due


@pytest.mark.law("V5")
class TestWrites:
    def test_without_write_filters_visible_and_new_rows_may_be_written(self) -> None:
        eyes = viewer(bucket(MINE))
        mine, theirs = row(owner="ann"), row(owner="bob")

        assert eyes.may_write("todos", mine, theirs)
        assert eyes.may_write("todos", mine, None)
        assert eyes.may_write("todos", None, theirs)
        assert not eyes.may_write("todos", theirs, mine)
        assert not eyes.may_write("todos", theirs, None)

    def test_without_rules_every_row_may_be_written(self) -> None:
        assert viewer().may_write("todos", row(owner="bob"), None)

    def test_bucket_with_empty_write_filters_permits_every_write(self) -> None:
        assert viewer(bucket(MINE, write=())).may_write("todos", row(owner="bob"), None)

    def test_write_filters_must_match_the_row_before_and_after(self) -> None:
        eyes = viewer(bucket(write=(MINE,)))
        mine, theirs = row(owner="ann"), row(owner="bob")

        assert eyes.may_write("todos", None, mine)
        assert eyes.may_write("todos", mine, mine)
        assert eyes.may_write("todos", mine, None)
        assert not eyes.may_write("todos", mine, theirs)
        assert not eyes.may_write("todos", theirs, mine)
        assert not eyes.may_write("todos", theirs, None)

    def test_write_filters_restrict_only_their_tables_and_buckets_are_alternatives(self) -> None:
        eyes = viewer(
            bucket(tables="lists"),
            bucket(tables="todos", write=(MINE,)),
            bucket(tables="todos", write=(Filter("open", "eq", value=True),)),
        )

        assert eyes.may_write("lists", None, row(owner="bob"))
        assert eyes.may_write("todos", None, row(owner="bob", open=True))
        assert not eyes.may_write("todos", None, row(owner="bob", open=False))


@pytest.mark.law("V6")
class TestScope:
    def test_claims_that_no_filter_reads_do_not_change_the_scope(self) -> None:
        before = viewer(bucket(MINE)).scope()

        assert viewer(bucket(MINE), claims=CLAIMS | {"exp": 9}).scope() == before

    def test_scopes_differ_only_for_tables_whose_rows_can_differ(self) -> None:
        rules = [bucket(MINE, tables="todos"), bucket(tables="lists")]
        ann = viewer(*rules).scope()
        bob = viewer(*rules, claims={"sub": "bob"}).scope()

        assert bob.changed(ann) == ["todos"]

    def test_names_and_order_of_buckets_do_not_change_the_scope(self) -> None:
        one, two = bucket(MINE), bucket(Filter("size", "gt", 1))

        assert viewer(one, two).scope() == viewer(two, one).scope()

    def test_rules_that_show_every_row_or_none_have_the_same_scope(self) -> None:
        nobody = Filter("owner", "eq", Claim(("nobody",)))

        assert (
            viewer().scope() == viewer(bucket()).scope() == viewer(bucket(MINE), bucket()).scope()
        )
        assert viewer(bucket(tables="lists")).scope().of("todos") == NOTHING
        assert viewer(bucket(nobody)).scope().of("todos") == NOTHING

    def test_first_rules_change_the_scope_of_every_table_not_shown_whole(self) -> None:
        first = viewer(bucket(MINE, tables="todos"), bucket(tables="lists")).scope()

        assert first.changed(viewer().scope()) == ["todos", OTHERS]

    def test_scope_round_trips_through_its_text(self) -> None:
        scope = viewer(bucket(MINE, tables="todos lists"), bucket(tables="users")).scope()

        assert scope_of(scope.text()) == scope
        assert scope_of(viewer().scope().text()) == viewer().scope()

    @pytest.mark.parametrize("text", ["", "?", "*~", "*~todos", "*~1.x", "a~b.", "\0~x.y"])
    def test_unreadable_scope_text_counts_as_changed_for_all_other_tables(self, text: str) -> None:
        assert OTHERS in viewer().scope().changed(scope_of(text))

    def test_too_long_scope_lists_no_tables(self) -> None:
        many = [bucket(MINE, tables=f"{'t' * 50}_{n}") for n in range(SCOPE_CHARS_MAX // 50)]
        text = viewer(*many).scope().text()

        assert len(text) <= SCOPE_CHARS_MAX
        assert not scope_of(text).is_listed


values = st.sampled_from(["ann", "bob", "7", "x", 7, 3, True, None])
filters = st.builds(
    Filter,
    st.sampled_from(["owner", "size"]),
    st.sampled_from(OPERATORS),
    st.sampled_from(["ann", 7, Claim(("sub",)), Claim(("org", "teams")), Claim(("nobody",))]),
)
buckets = st.lists(st.lists(filters, max_size=3).map(lambda f: bucket(*f)), max_size=3)
rows = st.dictionaries(st.sampled_from(["owner", "size", "more"]), values).map(lambda c: row(**c))


@pytest.mark.law("V1", "V6")
@given(buckets, rows)
def test_rules_with_the_same_scope_show_the_same_rows(
    some: list[Bucket], values: dict[str, bytes]
) -> None:
    """A bucket turned into one of its values, or said twice, decides as before."""
    eyes = viewer(*some)
    filled = [
        bucket(*(item if not isinstance(item.value, Claim) or item.value.path != ("sub",)
                 else Filter(item.column, item.op, "ann") for item in one.filters))
        for one in some
    ]  # fmt: skip

    assert viewer(*filled).scope() == eyes.scope()
    assert viewer(*filled).sees("t", values) == eyes.sees("t", values)
    assert eyes.sees("t", values) == (
        not some or any(viewer(one).sees("t", values) for one in some)
    )
