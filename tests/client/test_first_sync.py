"""A first sync: rows that are new are written without being read first, and merged all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.core.messages import Progress, Resync
from lakesync.errors import ValidationFailed
from lakesync.result import Err
from tests.client.support.pages import ScriptedPages, page
from tests.client.support.world import check_sound, rows_of
from tests.support.builders import at_ms, delete, insert, update
from tests.support.oracle import expected_row

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.core.messages import Pull, PullPage
    from tests.client.support.world import World

EVENTS = st.lists(
    st.tuples(
        st.sampled_from((insert, update, delete)),
        st.sampled_from(("r1", "r2", "r3")),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=12,
)
"""What each delta does, to which row, with which columns; and whether a page ends behind it."""


@pytest.mark.law("K6")
@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(events=EVENTS)
def test_rows_equal_the_merge_of_their_deltas_however_pages_divide_them(
    world: World, events: list[tuple[type, str, int, bool]]
) -> None:
    pages, deltas, begun = [], [], 0
    for place, (make, row, columns, ends) in enumerate(events, 1):
        values = {} if make is delete else {f"c{n}": place for n in range(columns)} or {"c0": place}
        deltas.append(make(row, at=at_ms(place), client=f"other{place % 2}", **values))
        if ends or place == len(events):
            pages.append(page(*deltas[begun:], cursor=place))
            begun = place
    name = f"client-{len(world._open)}"
    client = world.client(name, transport=ScriptedPages(*pages))
    for _ in pages:
        client.pull().unwrap()

    shown = {row: values for (_, row), values in rows_of(client).items()}
    assert shown == _rows(deltas)
    check_sound(client)


def _rows(deltas: list[Delta]) -> dict[str, dict[str, int]]:
    by_row: dict[str, list[Delta]] = {}
    for delta in deltas:
        by_row.setdefault(delta.row_id, []).append(delta)
    made = {row: expected_row(of_row) for row, of_row in by_row.items()}
    return {
        row: {name: int(value) for name, value in values.items()}
        for row, values in made.items()
        if values is not None
    }


def test_a_page_with_some_rows_already_stored_applies_the_others(world: World) -> None:
    stored = insert("r1", at=at_ms(1), client="x", title="one", done=False)
    again = insert("r1", at=at_ms(1), client="x", title="one", done=False)
    later = update("r1", at=at_ms(2), client="y", title="two")
    new = insert("r2", at=at_ms(3), client="x", title="new", other=[1])
    client = world.client(
        transport=ScriptedPages(
            page(stored, cursor=1), page(later, cursor=2), page(again, new, cursor=3)
        )
    )
    for _ in range(3):
        client.pull().unwrap()

    assert rows_of(client) == {
        ("todos", "r1"): {"title": "two", "done": False},
        ("todos", "r2"): {"title": "new", "other": [1]},
    }
    titles = client.query("SELECT title FROM todos ORDER BY 1").unwrap()
    assert titles == [{"title": "new"}, {"title": "two"}]
    check_sound(client)


def _words(first: str, table: str) -> str:
    return f"{at_ms(9):x}|all{first}|||{table}|"


@pytest.mark.law("K30")
def test_a_table_counts_as_synced_once_the_snapshot_has_passed_it_even_across_restarts(
    world: World,
) -> None:
    begun = {"has_more": True, "resync": Resync(("lists", "notes", "todos"))}
    on = {"has_more": True}
    todo, note = insert("t1", at=at_ms(1), n=1), insert("n1", at=at_ms(2), table="notes", n=1)
    stopping = _StoppingPages(
        page(todo, cursor=9, snapshot=_words(":todos", "todos"), **begun),
        page(cursor=9, snapshot=_words(":todos", "lists"), **on),
        page(cursor=9, snapshot=_words(":todos", "notes"), **on),
        page(note, cursor=9, snapshot=_words(":todos", ""), **on),
        page(cursor=10, **on),
        page(cursor=11),
    )
    client = world.client(transport=stopping, first_tables=["todos"])
    shown = [client.status.synced_tables]
    for number in range(6):
        assert isinstance(client.pull(), Err) is (number < 5)
        assert client.status.has_synced is (number == 5)
        client.close()
        client = world.client(transport=stopping, first_tables=["notes"])
        shown.append(client.status.synced_tables)

    whole = frozenset({"todos", "notes"})
    none = frozenset[str]()
    assert shown == [none, none, {"todos"}, {"todos"}, whole, whole, whole]
    assert stopping.asked[0] == "begin:todos"


@pytest.mark.law("K30")
def test_a_table_found_only_in_the_log_is_synced_at_the_end_of_the_log(world: World) -> None:
    begun = {"has_more": True, "resync": Resync(("Todos",))}
    on = {"has_more": True}
    todo, event = insert("t1", at=at_ms(1), n=1), insert("e1", at=at_ms(2), table="events", n=1)
    stopping = _StoppingPages(
        page(todo, cursor=9, snapshot=_words(":todos,events", "events"), **begun),
        page(cursor=9, snapshot=_words(":todos,events", ""), **on),
        page(event, cursor=10, **on),
        page(cursor=11),
    )
    client = world.client(transport=stopping, first_tables=["todos", "events"])
    client.insert("events", "mine", {"n": 2}).unwrap()
    shown = []
    for number in range(4):
        assert isinstance(client.pull(), Err) is (number < 3)
        assert client.status.has_synced is (number == 3)
        shown.append(client.status.synced_tables)

    assert shown == [{"todos"}, {"todos"}, {"todos"}, {"todos", "events"}]


@pytest.mark.law("K30")
def test_the_status_shows_checkpoint_progress_only_where_it_is_known(
    world: World,
) -> None:
    begun = {"has_more": True, "resync": Resync(("todos",))}
    on = {"has_more": True}
    shown: list[Progress | None] = []

    class Watched(ScriptedPages):
        def pull(self, pull: Pull) -> PullPage:
            shown.append(client.status.progress)
            return super().pull(pull)

    todo = insert("t1", at=at_ms(1), n=1)
    of_checkpoint = page(todo, cursor=9, snapshot=_words("", "todos"), **begun)
    pages = Watched(
        replace(of_checkpoint, progress=Progress(5, 20)),
        replace(page(cursor=9, snapshot=_words("", ""), **on), progress=Progress(20, 20)),
        page(cursor=10, **on),
        page(cursor=11),
    )
    client = world.client(transport=pages)
    client.pull().unwrap()
    assert shown == [None, Progress(5, 20), Progress(20, 20), None]
    assert client.status.progress is None


class _StoppingPages(ScriptedPages):
    """Brings one page at a time, and then there is no network."""

    def __init__(self, *pages: PullPage) -> None:
        super().__init__(*(each for one in pages for each in (one, None)))
        self.asked: list[str] = []

    def pull(self, pull: Pull) -> PullPage:
        self.asked.append(pull.snapshot)
        return super().pull(pull)


@pytest.mark.law("K30")
def test_without_a_snapshot_no_table_is_synced_before_the_last_page(world: World) -> None:
    todo = insert("t1", at=at_ms(1), n=1)
    pages = ScriptedPages(page(todo, cursor=1, has_more=True), None, page(cursor=2))
    client = world.client(transport=pages)
    client.pull().unwrap_or(None)
    assert client.status.synced_tables == frozenset()
    client.pull().unwrap()
    assert client.status.synced_tables == {"todos"}


@pytest.mark.parametrize("tables", [["no-name"], [""], [f"t{n}" for n in range(33)]])
def test_invalid_or_too_many_first_tables_are_refused(world: World, tables: list[str]) -> None:
    with pytest.raises(ValidationFailed) as refused:
        world.client("refused", first_tables=tables)

    assert refused.value.field == "first_tables"
