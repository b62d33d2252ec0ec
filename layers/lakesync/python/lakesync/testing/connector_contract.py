"""What every connector promises, as tests: inherit `ConnectorContract`, and give it a source.

::

    class TestMine(ConnectorContract):
        @pytest.fixture
        def bench(self) -> MyBench: ...

pytest collects the inherited tests. A bench is the source under test: a server that simulates it,
or a real one, in which the tests change rows of one table. Laws N1-N6: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.connectors.pages import deltas_of
from lakesync.core.column_types import precision_scale
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.connectors import Connector, SourcePage
    from lakesync.core.delta import Delta

_BEGUN_MS: Final = 4_000_000_000_000
"""Later than any source's clock, so that change times stand."""
_PAGES_MAX: Final = 1_000


class ConnectorBench(Protocol):
    """A source under test, with one table."""

    table: str
    """The source's name for the table. For a source with a feed, ``sources`` states what is read:
    ``(FEED, table)``.
    """
    notices_deletions: bool
    """Deletions are given at the next poll."""

    def connector(self) -> Connector:
        """Return a new connector to the source: as another process would have it."""
        ...

    def put(self, rows: Mapping[str, Any]) -> None:
        """Insert or change rows, by row id; a value is that of one column, as the bench chooses."""
        ...

    def delete(self, row_id: str) -> None:
        """Delete a row."""
        ...

    def value(self, columns: Mapping[str, Any]) -> Any:
        """Return the value of that column out of what was read."""
        ...


class Reader:
    """Reads a bench as polls do, and applies what it reads."""

    def __init__(self, bench: ConnectorBench) -> None:
        self.bench = bench
        self.rows: dict[str, Any] = {}
        self.sources: tuple[str, ...] = getattr(bench, "sources", (bench.table,))
        self.cursors = dict.fromkeys(self.sources, "")
        self.polls = 0
        self.connector = bench.connector()

    def page(self, cursor: str, rows_max: int, source: str = "") -> SourcePage:
        """Read one page of the poll that is under way."""
        read = self.connector.read(
            source or self.bench.table, cursor, rows_max=rows_max, poll_ms=_BEGUN_MS + self.polls
        )
        assert not isinstance(read, Err), f"a page could not be read: {read.error}"
        return read.value

    def poll(self, rows_max: int = 50) -> list[SourcePage]:
        """Read a whole poll, and apply it."""
        self.polls += 1
        pages: list[SourcePage] = []
        for source in self.sources:
            has_more = True
            while has_more:
                assert len(pages) < _PAGES_MAX, "the poll has no end"
                pages.append(self.page(self.cursors[source], rows_max, source))
                self.cursors[source] = pages[-1].cursor
                self.apply(pages[-1])
                has_more = pages[-1].has_more
        return pages

    def apply(self, page: SourcePage) -> None:
        """Apply a page's changes."""
        for change in page.changes:
            if change.columns is None:
                self.rows.pop(change.row_id, None)
            else:
                self.rows[change.row_id] = self.bench.value(change.columns)

    def again(self) -> None:
        """Go on as another process."""
        self.connector.close()
        self.connector = self.bench.connector()

    def deltas(self, page: SourcePage) -> list[Delta]:
        """Return a page's deltas; all of it can be one."""
        made, refused = deltas_of(
            page, self.bench.table, {self.bench.table: "t"}, "connector:c", _BEGUN_MS + self.polls
        )
        assert not refused, f"no delta can be made of {refused}"
        return made


class ConnectorContract:
    """The promises. A subclass has the fixture ``bench``."""

    def test_it_says_in_one_sentence_that_it_is_right(self, bench: ConnectorBench) -> None:
        """`check` answers."""
        checked = bench.connector().check()

        assert isinstance(checked, Ok)
        assert checked.value.endswith(".")
        assert "\n" not in checked.value

    def test_it_tells_tables_with_types_that_there_are(self, bench: ConnectorBench) -> None:
        """`discover` gives the bench's table, its key among its columns."""
        discovered = bench.connector().discover()

        assert isinstance(discovered, Ok)
        table = next(each for each in discovered.value if each.name == bench.table)
        assert set(table.key) <= {column.name for column in table.columns}
        assert table.key
        for column in table.columns:
            precision_scale(column.type)

    def test_polls_bring_every_row_and_every_change(self, bench: ConnectorBench) -> None:
        """What is read is what there is, however small the pages are."""
        expected = {f"{number}": f"first {number}" for number in range(1, 12)}
        bench.put(expected)
        reader = Reader(bench)
        reader.poll(rows_max=3)
        assert reader.rows == expected
        changes = {"2": "second 2", "11": "second 11", "40": "new"}
        bench.put(changes)
        reader.again()
        reader.poll(rows_max=3)

        assert reader.rows == expected | changes

    def test_deletions_are_noticed_where_that_is_promised(self, bench: ConnectorBench) -> None:
        """A row that is gone is given as deleted, and no other."""
        bench.put({"1": "a", "2": "b", "3": "c"})
        reader = Reader(bench)
        reader.poll()
        bench.delete("2")
        reader.poll()

        gone = {"2"} if bench.notices_deletions else set()
        assert {"1", "2", "3"} - set(reader.rows) == gone

    def test_a_page_that_is_read_twice_gives_the_same_deltas(self, bench: ConnectorBench) -> None:
        """Whoever was killed before the cursor was saved pushes the same again."""
        bench.put({f"{number}": "x" for number in range(1, 8)})
        reader = Reader(bench)
        reader.polls = 1
        for source in reader.sources:
            cursor, has_more = "", True
            while has_more:
                first = reader.page(cursor, 3, source)
                reader.again()
                second = reader.page(cursor, 3, source)
                ids = [[each.delta_id for each in reader.deltas(page)] for page in (first, second)]
                assert ids[0] == ids[1][: len(ids[0])]
                cursor, has_more = second.cursor, second.has_more

    def test_what_did_not_change_ends_in_no_new_delta(self, bench: ConnectorBench) -> None:
        """Polls of a source at rest give nothing, or what they gave already."""
        bench.put({"1": "a", "2": "b"})
        reader = Reader(bench)
        given = {delta.delta_id for page in reader.poll() for delta in reader.deltas(page)}
        for _ in range(2):
            again = {delta.delta_id for page in reader.poll() for delta in reader.deltas(page)}

            assert again <= given

    def test_what_comes_later_is_dated_later(self, bench: ConnectorBench) -> None:
        """A later change of a row has a greater stamp."""
        bench.put({"1": "a"})
        reader = Reader(bench)
        first = [delta.hlc for page in reader.poll() for delta in reader.deltas(page)]
        bench.put({"1": "b"})
        second = [delta.hlc for page in reader.poll() for delta in reader.deltas(page)]

        assert max(second) > max(first)

    def test_a_table_that_is_not_there_is_refused(self, bench: ConnectorBench) -> None:
        """It is an `Err` that says so, not an exception, nor an empty page."""
        read = bench.connector().read("no_such_table", "", rows_max=10, poll_ms=_BEGUN_MS)

        assert isinstance(read, Err)
