"""`lakesync pull`: read all changes after a cursor."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lakesync.cli.existence import must_exist
from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState

_SHOWN_MAX: Final = 40


@command
def pull(
    session: Session,
    *,
    since: Annotated[
        str, typer.Option(help="The cursor to continue from; 0 reads everything.")
    ] = "0",
    source: Annotated[
        str, typer.Option(help="Read this declared destination instead of the gateway.")
    ] = "",
    snapshot: Annotated[
        str, typer.Option(help="Continue in a source: the position printed by the previous pull.")
    ] = "",
    table: Annotated[str | None, typer.Option(help="Show only this table.")] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Merge the deltas, and show the resulting rows.")
    ] = False,
    page: Annotated[int, typer.Option(help="Deltas per page.", min=1, max=10_000)] = (1_000),
) -> None:
    """Pull all changes after a cursor and print the deltas, or with --rows the merged rows.

    With --json it prints one delta per line, and the next cursor on standard error. --source reads
    a destination by the same sync rules. If a table is reported as read again, discard its rows
    from earlier pulls.

    Example:
      lakesync pull --rows --table todos
      lakesync pull --json --since 0 > deltas.ndjson
      lakesync pull --rows --source warehouse
    """
    if not since.isdigit():
        raise UsageFault(
            f"--since {since[:20]!r} is not a cursor: it is a number, 0 for everything"
        )
    if (source and since != "0") or (snapshot and not source):
        raise UsageFault("--since goes on from the gateway's pages, --snapshot from a source's")
    feed = Feed(session, int(since), page, source, snapshot)
    deltas = (delta for delta in feed if table is None or delta.table == table)
    if rows:
        _show_rows(session, feed, deltas)
    elif session.out.json_lines:
        for delta in deltas:
            session.out.json(delta_json(delta))
    else:
        _show_deltas(session, deltas)
    sys.stdout.flush()
    _say_where_it_ended(session, feed)


def _say_where_it_ended(session: Session, feed: Feed) -> None:
    if session.out.json_lines:
        at = {"snapshot": feed.snapshot} if feed.source else {"serverHlc": str(feed.cursor)}
        again = {"readAgain": sorted(feed.read_again)} if feed.read_again else {}
        session.out.note(json.dumps({**at, **again, "count": feed.count}))
        return
    on = f"--since {feed.cursor}"
    if feed.source:
        on = f"--source {feed.source} --snapshot {feed.snapshot}"
    if feed.read_again:
        names = ", ".join(sorted(feed.read_again))
        session.out.note(f"read again from the first row; discard earlier rows of: {names}")
    count = plural(feed.count, "delta")
    session.out.note(f"{count}; to continue from here: lakesync pull {on}")


class Feed:
    """Every delta after a cursor, page by page; ``cursor`` follows, or of a source ``snapshot``."""

    def __init__(
        self, session: Session, since: int, page_deltas: int, source: str = "", snapshot: str = ""
    ) -> None:
        self._session = session
        self._page_deltas = page_deltas
        self.source = source
        self.cursor = since
        self.snapshot = snapshot
        self.count = 0
        self.read_again: set[str] = set()
        """Tables that are read again: earlier rows of them are void."""
        self.on_read_again: Callable[[str], None] = lambda _: None

    def __iter__(self) -> Iterator[Delta]:
        from lakesync.core.clock import STAMP_MAX
        from lakesync.core.messages import Pull
        from lakesync.wire.records import decode_records

        transport, epoch, scope, more = self._session.transport(), "", "", True
        while more:
            at = Pull(
                self._session.client_id, self.cursor, self._page_deltas, epoch, self.snapshot,
                scope=scope,
            )  # fmt: skip
            if self.source:
                at = replace(at, since=0, source=self.source)
            else:
                at = replace(at, at_least=STAMP_MAX)
            page = transport.pull(at)
            if not (page.epoch or page.count or self.source):
                must_exist(self._session)
            for table in page.resync.tables if page.resync else ():
                self.read_again.add(table)
                self.on_read_again(table)
            for run in page.records:
                yield from decode_records(run)
            epoch, scope, more = page.epoch, page.scope, page.has_more
            self.snapshot = page.snapshot
            if self.source or not page.snapshot:
                self.cursor = page.cursor
            self.count += page.count


def _show_deltas(session: Session, deltas: Iterable[Delta]) -> None:
    shown: list[Delta] = []
    left_out = 0
    for delta in deltas:
        if len(shown) < _SHOWN_MAX:
            shown.append(delta)
        else:
            left_out += 1
    session.out.table(
        ("op", "table", "row", "columns", "client", "hlc"),
        [(d.op.name, d.table, d.row_id, _columns_text(d), d.client_id, str(d.hlc)) for d in shown],
    )
    if left_out:
        session.out.note(f"… and {left_out:,} more: see --json")


def delta_json(delta: Delta) -> dict[str, object]:
    """Return a delta in the wire's JSON format, which `lakesync push` reads."""
    return {
        "op": delta.op.name,
        "table": delta.table,
        "rowId": delta.row_id,
        "clientId": delta.client_id,
        "columns": [{"column": name, "value": json.loads(value)} for name, value in delta.columns],
        "hlc": str(delta.hlc),
        "deltaId": delta.delta_id,
    }


def _columns_text(delta: Delta) -> str:
    return " ".join(f"{name}={value.decode()}" for name, value in delta.columns)


def _show_rows(session: Session, feed: Feed, deltas: Iterable[Delta]) -> None:
    from lakesync.core.merge import EMPTY, apply, as_read, view

    states: dict[tuple[str, str], RowState] = {}
    delete_wins = {one.table for one in session.transport().schemas().tables if one.delete_wins}

    def forget(table: str) -> None:
        for key in [key for key in states if key[0] == table]:
            del states[key]

    feed.on_read_again = forget
    for delta in deltas:
        key = delta.table, delta.row_id
        states[key] = apply(states.get(key, EMPTY), delta)
    by_table: dict[str, list[dict[str, object]]] = {}
    for (table, row_id), state in sorted(states.items()):
        values_of = view(as_read(state, delete_wins=table in delete_wins))
        if values_of is not None:
            values = {name: json.loads(value) for name, value in sorted(values_of.items())}
            by_table.setdefault(table, []).append({"_row_id": row_id, **values})
    for table, rows in by_table.items():
        if session.out.json_lines:
            for row in rows:
                session.out.json({"table": table, **row})
        else:
            _show_table(session, table, rows)


def _show_table(session: Session, table: str, rows: Sequence[dict[str, object]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    session.out.table(
        names,
        [[row.get(name) for name in names] for row in rows[:_SHOWN_MAX]],
        title=f"{table}: {plural(len(rows), 'row')}",
    )
    if len(rows) > _SHOWN_MAX:
        session.out.note(f"… and {len(rows) - _SHOWN_MAX:,} more: see --json")
