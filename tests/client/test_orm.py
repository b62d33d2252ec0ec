"""SQLAlchemy on a client's file: Core, a mapped model and sessions; and the PEP 249 interface."""

from __future__ import annotations

import threading
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal  # noqa: TC003 - SQLAlchemy reads the hints
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import ForeignKey, LargeBinary, Numeric, String, Uuid, func, insert, select, update
from sqlalchemy.exc import IntegrityError, NotSupportedError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship
from sqlalchemy.types import JSON, BigInteger

from lakesync.client import dbapi
from lakesync.client.orm import declare_tables, engine
from lakesync.result import Err
from tests.client.support.world import World, check_sound

if TYPE_CHECKING:
    from lakesync.client import Client


def new_id() -> str:
    return uuid.uuid4().hex


class Base(DeclarativeBase):
    """Tables of an app for field service."""


class Site(Base):
    """A place that is visited."""

    __tablename__ = "sites"
    id: Mapped[str] = mapped_column("_row_id", String, primary_key=True, default=new_id)
    name: Mapped[str]
    visits: Mapped[list[Visit]] = relationship(back_populates="site", order_by="Visit.due")


class Visit(Base):
    """What is done there, with a column of every type."""

    __tablename__ = "visits"
    id: Mapped[str] = mapped_column("_row_id", String, primary_key=True, default=new_id)
    site_id: Mapped[str | None] = mapped_column(ForeignKey("sites._row_id"), index=True)
    site: Mapped[Site | None] = relationship(back_populates="visits")
    note: Mapped[str | None]
    done: Mapped[bool] = mapped_column(default=False)
    due: Mapped[date | None]
    seen_at: Mapped[datetime | None]
    price: Mapped[Decimal | None] = mapped_column(Numeric(20, 4))
    hours: Mapped[float | None]
    meter: Mapped[int | None] = mapped_column(BigInteger)
    photo: Mapped[bytes | None] = mapped_column(LargeBinary)
    extra: Mapped[Any] = mapped_column(JSON, nullable=True)
    token: Mapped[uuid.UUID | None] = mapped_column(Uuid)


def opened(world: World, name: str = "c1") -> tuple[Client, sqlalchemy.Engine]:
    client = world.client(name)
    declare_tables(client, Base.metadata).unwrap()
    return client, engine(client)


def test_rows_committed_by_a_session_reach_another_device(world: World) -> None:
    mine, my_engine = opened(world)
    other, other_engine = opened(world, "c2")
    with Session(my_engine) as session:
        site = Site(name="Nordbahnhof")
        site.visits += [Visit(note="oil", due=date(2026, 5, 1)), Visit(note="belt", done=True)]
        session.add(site)
        session.commit()
        site_id = site.id
    mine.sync().unwrap()
    other.sync().unwrap()

    with Session(other_engine) as session:
        there = session.get_one(Site, site_id)
        assert [(visit.note, visit.done) for visit in there.visits] == [
            ("belt", True),
            ("oil", False),
        ]
        open_visits = select(func.count()).where(Visit.done.is_(False), Visit.site_id == site_id)
        assert session.scalar(open_visits) == 1
    check_sound(mine)
    check_sound(other)


@pytest.mark.law("K25")
def test_a_session_update_writes_only_the_changed_columns(world: World) -> None:
    mine, my_engine = opened(world)
    with Session(my_engine) as session:
        session.add(Visit(id="v1", note="oil", due=date(2026, 5, 1)))
        session.commit()
    mine.sync().unwrap()

    with Session(my_engine) as session:
        session.get_one(Visit, "v1").done = True
        session.commit()

    (waiting,) = mine.pending().unwrap()
    assert dict(waiting.delta.columns) == {"done": b"true"}


def test_a_session_that_is_rolled_back_writes_nothing(world: World) -> None:
    mine, my_engine = opened(world)
    with Session(my_engine) as session:
        session.add(Site(id="s1", name="x"))
        session.flush()
        assert session.scalar(select(func.count()).select_from(Site)) == 1  # it reads its own
        assert mine.get("sites", "s1").unwrap() is None  # and nobody else does
        session.rollback()

    assert mine.pending().unwrap() == []


@pytest.mark.law("K25")
def test_the_edits_of_a_session_are_one_transaction(world: World) -> None:
    mine, my_engine = opened(world)
    with Session(my_engine) as session:
        session.add_all([Site(id="s1", name="x"), Visit(id="v1", site_id="s1")])
        session.commit()

    waiting = mine.query("SELECT count(*) AS edits, count(DISTINCT txn) AS n FROM _lakesync_outbox")
    assert waiting.unwrap() == [{"edits": 2, "n": 1}]


def test_after_a_failed_statement_a_session_can_only_be_rolled_back(world: World) -> None:
    _, my_engine = opened(world)
    with Session(my_engine) as session:
        session.add(Site(id="s1", name="x"))
        session.commit()
        session.add(Site(id="s2", name="y"))
        session.flush()
        with pytest.raises(IntegrityError, match="the row is there: use UPDATE"):
            session.execute(insert(Site).values(id="s1", name="z"))
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        assert session.scalars(select(Site.id)).all() == ["s1"]


def test_a_second_writing_session_on_the_same_thread_is_refused(world: World) -> None:
    mine, my_engine = opened(world)
    with Session(my_engine) as session:
        session.add(Site(id="s1", name="x"))
        session.flush()
        with Session(my_engine) as second, pytest.raises(OperationalError, match="transaction"):
            second.execute(update(Site).values(name="y"))
        session.commit()

    assert mine.get("sites", "s1").unwrap() == {"name": "x"}


def test_concurrent_sessions_of_several_threads_all_commit(world: World) -> None:
    _, my_engine = opened(world)

    def add(number: int) -> None:
        for step in range(5):
            with Session(my_engine) as session:
                session.add(Site(id=f"s{number}-{step}", name="x"))
                session.commit()

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with Session(my_engine) as session:
        assert session.scalar(select(func.count()).select_from(Site)) == 20


def test_sqlalchemy_core_statements_become_edits(world: World) -> None:
    mine, my_engine = opened(world)
    with my_engine.begin() as connection:
        connection.execute(
            insert(Site), [{"_row_id": "s1", "name": "a"}, {"_row_id": "s2", "name": "b"}]
        )
        changed = connection.execute(update(Site).where(Site.name == "b").values(name="c"))
        assert changed.rowcount == 1
        assert connection.execute(sqlalchemy.delete(Site).where(Site.id == "s1")).rowcount == 1

    assert mine.query("select * from sites").unwrap() == [{"_row_id": "s2", "name": "c"}]


def test_create_all_accepts_tables_that_are_already_declared(world: World) -> None:
    _, my_engine = opened(world)
    Base.metadata.create_all(my_engine)

    assert {"sites", "visits"} <= set(sqlalchemy.inspect(my_engine).get_table_names())


def test_create_all_of_undeclared_tables_is_refused(world: World) -> None:
    client = world.client()

    with pytest.raises(NotSupportedError, match="declare_tables"):
        Base.metadata.create_all(engine(client))


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True), "the one column _row_id"),
        (sqlalchemy.Column("_row_id", sqlalchemy.Integer, primary_key=True), "_row_id is text"),
        (sqlalchemy.Column("_row_id", String), "the one column _row_id"),
    ],
)
def test_a_table_that_cannot_be_synced_is_refused_before_any_is_declared(
    world: World, column: Any, reason: str
) -> None:
    metadata = sqlalchemy.MetaData()
    fine = sqlalchemy.Column("_row_id", String, primary_key=True)
    sqlalchemy.Table("a", metadata, fine)
    sqlalchemy.Table("b", metadata, column)
    client = world.client()

    refused = declare_tables(client, metadata)

    assert isinstance(refused, Err)
    assert reason in str(refused.error)
    assert isinstance(client.query("select * from a"), Err)


def test_savepoints_are_refused(world: World) -> None:
    _, my_engine = opened(world)
    with Session(my_engine) as session, session.begin_nested():
        session.add(Site(id="s1", name="x"))
        with pytest.raises(NotSupportedError, match="no savepoints"):
            session.flush()
        session.rollback()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MOMENTS = st.datetimes(
    datetime(2, 1, 1),  # noqa: DTZ001 - hypothesis adds the zone
    datetime(9998, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=-5, minutes=-30))]),
)
JSONS = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
VALUES = st.fixed_dictionaries(
    {
        "note": st.none() | TEXT,
        "done": st.booleans(),
        "due": st.none() | st.dates(),
        "seen_at": st.none() | MOMENTS,
        "price": st.none() | st.decimals(-(10**15), 10**15, places=4),
        "hours": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "meter": st.none() | st.integers(-(2**63), 2**63 - 1),
        "photo": st.none() | st.binary(max_size=50),
        "extra": st.none() | st.lists(JSONS, max_size=3) | st.dictionaries(TEXT, JSONS, max_size=3),
        "token": st.none() | st.uuids(),
    }
)


@pytest.fixture
def pair(world: World) -> tuple[Any, Any]:
    return opened(world), opened(world, "c2")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES)
def test_a_session_reads_every_value_unchanged_on_another_device(
    pair: tuple[Any, Any], values: dict[str, Any]
) -> None:
    (mine, my_engine), (other, other_engine) = pair
    row_id = new_id()
    with Session(my_engine) as session:
        session.add(Visit(id=row_id, **values))
        session.commit()
    mine.sync().unwrap()
    other.sync().unwrap()

    for each in (my_engine, other_engine):
        with Session(each) as session:
            read = session.get_one(Visit, row_id)
            assert {name: getattr(read, name) for name in values} == values


def test_the_database_interface_follows_pep_249(world: World) -> None:
    client = world.client()
    client.declare("sites", {"name": "string"}).unwrap()
    connection = dbapi.connect(client)
    cursor = connection.cursor()
    cursor.executemany("INSERT INTO sites (_row_id, name) VALUES (?, ?)", [("a", "x"), ("b", "y")])
    assert cursor.rowcount == 2
    connection.commit()

    cursor.execute("-- all\nSELECT name FROM sites ORDER BY name")
    assert cursor.description is not None
    assert [column[0] for column in cursor.description] == ["name"]
    assert cursor.fetchone() == ("x",)
    assert cursor.fetchmany(5) == [("y",)]
    assert cursor.fetchone() is None
    cursor.execute("WITH named AS (SELECT 'z' AS n) UPDATE sites SET name = (SELECT n FROM named)")
    assert cursor.rowcount == 2
    cursor.execute("WITH one AS (SELECT 1 AS n) SELECT n FROM one WHERE n > 1")
    assert (cursor.description[0][0], cursor.fetchall()) == ("n", [])
    connection.rollback()
    assert list(cursor.execute("SELECT DISTINCT name FROM sites ORDER BY 1")) == [("x",), ("y",)]
    connection.close()
    connection.close()
    with pytest.raises(dbapi.ProgrammingError, match="closed"):
        cursor.execute("SELECT 1")


def test_rows_fetched_in_parts_are_complete(world: World) -> None:
    _, my_engine = opened(world)
    with Session(my_engine) as session:
        session.add_all([Site(id=f"s{number}", name="x") for number in range(10)])
        session.commit()
        read = session.scalars(select(Site.id).order_by(Site.id).execution_options(yield_per=3))
        assert list(read) == [f"s{number}" for number in range(10)]


@pytest.mark.parametrize("sql", ["COMMIT", "BEGIN", "SAVEPOINT a", "DROP TABLE sites"])
def test_transaction_control_and_drop_statements_are_refused(world: World, sql: str) -> None:
    client = world.client()
    with pytest.raises(dbapi.NotSupportedError):
        dbapi.connect(client).cursor().execute(sql)


@pytest.mark.parametrize(
    "sql", ["ATTACH 'x' AS y", "PRAGMA journal_mode = OFF", "VACUUM", "nonsense"]
)
def test_sql_that_is_neither_a_query_nor_an_edit_is_refused(world: World, sql: str) -> None:
    client = world.client()
    with pytest.raises(dbapi.ProgrammingError):
        dbapi.connect(client).cursor().execute(sql)


def test_a_connection_used_on_another_thread_is_refused(world: World) -> None:
    _, my_engine = opened(world)
    connection = my_engine.raw_connection()
    connection.cursor().execute("INSERT INTO sites (_row_id, name) VALUES ('a', 'x')")
    failures: list[BaseException] = []

    def elsewhere() -> None:
        try:
            connection.cursor().execute("UPDATE sites SET name = 'y'")
        except dbapi.ProgrammingError as error:
            failures.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    connection.rollback()

    assert "stays on its thread" in str(failures[0])
