"""Shares follow the tables that runs make, whoever else is at work, and wherever a run dies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from lakesync.errors import Conflict
from lakesync.materialise.lake_schema import STATE_TABLE, LakeColumn
from lakesync.materialise.sharing import (
    TRIES_MAX,
    KeptViews,
    Member,
    Share,
    SharedViews,
    Shares,
    share_key,
    shared_database,
)
from lakesync.materialise.views import TEXT_CHARACTERS_MAX, GlueViews, ViewedTable
from tests.glue.support.files import FileStore
from tests.support.athena import read_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tools.local_stack.aws_emulator import Emulator

PREFIX = "kept"
STACK = "arn:aws:cloudformation:us-east-1:1:stack/one/1"
PLACE = shared_database(PREFIX)
DELAY = LakeColumn("delay", "integer", "delay")
NOTE = LakeColumn("note", "string", "note")
MEMBER = Member("kept_acme", "flights", "state", (DELAY,))
NAMES = ("flights", "flights__rows", "flights__live")


def table(gateway: str, *columns: LakeColumn, written: str = "flights") -> ViewedTable:
    return ViewedTable(
        f"{PREFIX}_{gateway}", written, STATE_TABLE, columns, STACK, {}, False, gateway, written
    )


@pytest.fixture(scope="module")
def client(emulator: Emulator) -> Any:
    make: Any = boto3.client
    glue = make("glue", **emulator.client_options())
    for gateway in ("acme", "blue"):
        glue.create_database(DatabaseInput={"Name": f"{PREFIX}_{gateway}"})
    return glue


@pytest.fixture
def glue(client: Any) -> Iterator[Any]:
    """The emulator's, without views of shares."""
    yield client
    names = {one["Name"] for one in client.get_databases()["DatabaseList"]}
    if PLACE in names:
        for one in client.get_tables(DatabaseName=PLACE)["TableList"]:
            client.delete_table(DatabaseName=PLACE, Name=one["Name"])


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path)
    store.put(share_key("flights"), Share("flights", "flights").as_json())
    return store


def shares(store: FileStore) -> Shares:
    return Shares(store)  # type: ignore[arg-type]  # it keeps the store's promises


def a_run(store: FileStore, glue: Any) -> KeptViews:
    return KeptViews(GlueViews(glue), shares(store), PREFIX, STACK)


def views_of_shares(store: FileStore, glue: Any) -> SharedViews:
    return SharedViews(GlueViews(glue), shares(store), PREFIX, STACK)


def sql_of(glue: Any, name: str = "flights__rows") -> str:
    view = glue.get_table(DatabaseName=PLACE, Name=name)["Table"]
    sql: str = read_document(view["ViewOriginalText"])["originalSql"]
    return sql


@pytest.mark.emulator
@pytest.mark.law("L24")
def test_tables_and_columns_join_a_share_when_runs_create_them(store: FileStore, glue: Any) -> None:
    assert a_run(store, glue).keep(table("acme", DELAY)) == {}
    assert "kept_blue" not in sql_of(glue)
    run = a_run(store, glue)
    assert run.keep(table("blue", DELAY, NOTE)) == {}
    assert run.keep(table("blue", DELAY, written="planes")) == {}
    for name in NAMES:
        assert '"kept_acme"' in sql_of(glue, name)
        assert '"kept_blue"' in sql_of(glue, name)
        assert "planes" not in sql_of(glue, name)
    assert 'CAST(NULL AS varchar) AS "note"' in sql_of(glue)
    assert run.keep(table("acme", DELAY, NOTE)) == {}
    assert "NULL" not in sql_of(glue)


@pytest.mark.emulator
@pytest.mark.law("L24")
def test_run_killed_before_it_made_the_views_is_repaired_by_the_next(
    store: FileStore, glue: Any
) -> None:
    class Died(BaseException):
        pass

    def die(*_: str) -> None:
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GlueViews, "make_database", die)
        with pytest.raises(Died):
            a_run(store, glue).keep(table("acme", DELAY))
    assert "acme" in (shares(store).read("flights") or Share("", "")).members

    assert a_run(store, glue).keep(table("acme", DELAY)) == {}
    assert views_of_shares(store, glue).wrong(shares(store).all()[0]) == {}


@pytest.mark.emulator
@pytest.mark.law("L24")
def test_two_concurrent_runs_leave_views_of_the_later_share(store: FileStore, glue: Any) -> None:
    class Overtaken(GlueViews):
        """Another run does all of its work after this one has read the document."""

        is_first = True

        def make_database(self, name: str, comment: str) -> None:
            super().make_database(name, comment)
            if self.is_first:
                self.is_first = False
                assert a_run(store, glue).keep(table("blue", DELAY)) == {}

    run = KeptViews(Overtaken(glue), shares(store), PREFIX, STACK)
    assert run.keep(table("acme", DELAY)) == {}
    assert '"kept_blue"' in sql_of(glue)
    assert '"kept_acme"' in sql_of(glue)


def test_concurrent_changes_of_a_share_lose_no_member(store: FileStore) -> None:
    other = shares(store)
    done: list[Share | None] = []

    def joined(current: Share | None) -> Share:
        assert current is not None
        if not done:
            done.append(other.change("flights", lambda s: s and s.with_member("blue", MEMBER)))
        return current.with_member("acme", MEMBER)

    assert shares(store).change("flights", joined) == shares(store).read("flights")
    assert shares(store).all()[0].members.keys() == {"acme", "blue"}

    def never_first(current: Share | None) -> Share:
        members = {} if current is None else current.members
        store.put(share_key("flights"), Share("flights", "t", str(next(steps))).as_json())
        return Share("flights", "flights", "a*", members)

    steps = iter(range(TRIES_MAX))
    with pytest.raises(Conflict, match="try again"):
        shares(store).change("flights", never_first)


@pytest.mark.emulator
def test_fault_of_a_share_is_reported_and_affects_no_table(store: FileStore, glue: Any) -> None:
    glue.create_database(DatabaseInput={"Name": "kept_wide"})
    wide = tuple(LakeColumn(f"column_{n:03}", "timestamp", f"c{n}") for n in range(500))
    faults = dict(a_run(store, glue).keep(table("wide", *wide)))
    shared = faults.pop(f"{PLACE}.flights__live")
    assert shared == "the table of wide is too wide for one"
    assert faults == {"flights__live": f"its text is longer than {TEXT_CHARACTERS_MAX} characters"}
    assert '"kept_wide"' in sql_of(glue)

    store.put(share_key("broken"), json.dumps({"table": "flights"}).encode())
    faults = dict(a_run(store, glue).keep(table("acme", DELAY)))
    assert faults == {"shares": "KeyError: 'members'"}
    assert glue.get_table(DatabaseName="kept_acme", Name="flights__rows")


@pytest.mark.emulator
def test_table_of_others_with_the_name_of_a_shared_view_is_kept(
    store: FileStore, glue: Any
) -> None:
    GlueViews(glue).make_database(PLACE, "ours")
    GlueViews(glue).make_database(PLACE, "ours")
    glue.create_table(DatabaseName=PLACE, TableInput={"Name": "flights__live"})
    why = "something else has its name"
    assert a_run(store, glue).keep(table("acme", DELAY)) == {f"{PLACE}.flights__live": why}
    views = views_of_shares(store, glue)
    assert views.wrong(shares(store).all()[0]) == {"flights__live": why}

    views.drop(shares(store).all()[0])
    views.drop(shares(store).all()[0])
    left = [one["Name"] for one in glue.get_tables(DatabaseName=PLACE)["TableList"]]
    assert left == ["flights__live"]


def test_shares_are_stored_without_views_in_the_catalogue(store: FileStore) -> None:
    run = KeptViews(None, shares(store), PREFIX, STACK)
    assert run.keep(table("acme", DELAY)) == {}
    assert run.keep(table("acme", DELAY, NOTE)) == {}
    (share,) = shares(store).all()
    assert share.members["acme"].columns == (DELAY, NOTE)
