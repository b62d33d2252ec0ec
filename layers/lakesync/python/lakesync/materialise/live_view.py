"""The query of a live view: the state table, with the later rows of the changes table.

It expresses a merge (`lakesync.core.merge`) in SQL, on typed values: for each column the write with
the greatest stamp and client, and for a row whether it exists. Rows without waiting changes are
read unchanged. The greatest ``_commit`` of the state table is at or before its end (L18). A change
that is merged already changes nothing when it is merged again.

One client may have written two different values under one stamp, which no correct client does. Then
the merged value stays here, whereas a merge takes the greater text. Law L20: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.clock import COUNTER_BITS
from lakesync.materialise.shape import (
    ALIVE,
    CARRIED,
    CLIENT,
    COMMIT_STAMP,
    DELETED,
    HLC,
    ID,
    IS_DELETED,
    REST,
    STAMPS,
    TEXTS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lakesync.materialise.view_dialects import Dialect

_AGO: Final = ("ago_ms", "ago_counter")


def live_select(
    state: str,
    changes: str,
    columns: Sequence[str],
    dialect: Dialect,
    *,
    delete_wins: bool = False,
) -> str:
    """Return the query of the ids and columns of all rows that exist.

    Args:
        state: the state table, as the engine names it.
        changes: its changes table.
        columns: the state table's own columns.
        dialect: the engine's.
        delete_wins: how the table is read; see `lakesync.core.merge.as_read`.
    """
    return _LiveView(state, changes, columns, dialect, delete_wins=delete_wins).select()


class _LiveView:
    """The parts of the query, each of which reads those before it."""

    def __init__(
        self,
        state: str,
        changes: str,
        columns: Sequence[str],
        dialect: Dialect,
        *,
        delete_wins: bool,
    ) -> None:
        self._delete_wins = delete_wins
        self._state = state
        self._changes = changes
        # The intermediate columns are numbered, so that a wide table's query stays short.
        self._columns = [_Column(dialect.name(name), name, n) for n, name in enumerate(columns)]
        self._dialect = dialect

    def select(self) -> str:
        """Return the whole query."""
        parts = {
            "waiting": self._waiting(),
            "folded": self._folded(),
            "joined": self._joined(),
            "beside": self._beside(),
            "won": self._won(),
        }
        named = _listed(f"{name} AS ({query})" for name, query in parts.items())
        shown = _listed([ID, *(c.name for c in self._columns)])
        merged = _listed(
            [ID, *(f"CASE WHEN {c.at} > {DELETED} THEN {c.name} END" for c in self._columns)]
        )
        written = () if self._delete_wins else (c.at for c in self._columns)
        exists = " OR ".join(f"{at} > {DELETED}" for at in (ALIVE, *written))
        quiet = f"NOT {IS_DELETED} AND {ID} NOT IN (SELECT {ID} FROM waiting)"  # noqa: S608 - quoted
        return (
            f"WITH {named} SELECT {shown} FROM {self._state} WHERE {quiet}"  # noqa: S608 - quoted
            f" UNION ALL SELECT {merged} FROM won WHERE {exists}"
        )

    def _waiting(self) -> str:
        mark = f"SELECT coalesce(max({COMMIT_STAMP}), 0) FROM {self._state}"  # noqa: S608 - quoted
        return f"SELECT * FROM {self._changes} WHERE {COMMIT_STAMP} > ({mark})"  # noqa: S608 - quoted

    def _folded(self) -> str:
        """The waiting changes, as one row for each id."""
        parts = [
            ID,
            f"max(CASE WHEN _op = 'INSERT' THEN {HLC} ELSE 0 END) AS _new_alive",
            f"max(CASE WHEN _op = 'DELETE' THEN {HLC} ELSE 0 END) AS _new_deleted",
        ]
        for c in self._columns:
            carried = self._dialect.contains.format(list=CARRIED, item=_text(c.written))
            parts += [
                f"coalesce(max({HLC}) FILTER (WHERE {carried}), 0) AS {c.new_at}",
                f"{self._last(CLIENT)} FILTER (WHERE {carried}) AS {c.new_by}",
                f"{self._last(c.name)} FILTER (WHERE {carried}) AS {c.new}",
            ]
        return f"SELECT {_listed(parts)} FROM waiting GROUP BY {ID}"  # noqa: S608 - quoted

    def _joined(self) -> str:
        """The waiting changes beside their row, if there is one."""
        own = (f"s.{name}" for name in (HLC, CLIENT, STAMPS, TEXTS, IS_DELETED))
        values = (f"s.{c.name}" for c in self._columns)
        rest = (f"{self._stamp(REST)} AS _rest_at", f"{self._client(REST)} AS _rest_by")
        select = _listed(["w.*", *own, *values, *rest])
        return f"SELECT {select} FROM folded w LEFT JOIN {self._state} s ON s.{ID} = w.{ID}"  # noqa: S608 - quoted

    def _beside(self) -> str:
        """The same, with the stamps of the row."""
        whole = f"CASE WHEN {IS_DELETED} THEN {HLC} ELSE 0 END"
        # The greatest stamp of an existing row is its insert's or a column's, so it shows existence
        # too.
        alive = f"{self._number(ALIVE)}, _rest_at" if self._delete_wins else HLC
        parts = [
            "*",
            f"CASE WHEN {IS_DELETED} THEN 0 ELSE coalesce({alive}, 0) END AS {ALIVE}",
            f"coalesce({self._number(DELETED)}, {whole}) AS {DELETED}",
        ]
        for c in self._columns:
            text = self._dialect.scalar.format(json=TEXTS, path=_path(c.written))
            said = self._dialect.is_there.format(json=STAMPS, path=_path(c.written))
            stamp = f"CASE WHEN {said} THEN {self._stamp(c.written)} ELSE _rest_at END"
            client = f"CASE WHEN {said} THEN {self._client(c.written)} ELSE _rest_by END"
            parts += [
                f"CASE WHEN {c.name} IS NULL AND {text} IS NULL THEN 0 ELSE {stamp} END AS {c.at}",
                f"{client} AS {c.by}",
            ]
        return f"SELECT {_listed(parts)} FROM joined"  # noqa: S608 - quoted

    def _won(self) -> str:
        """The winning write of each column, and the stamps of the row's insert and delete."""
        parts = [
            ID,
            f"greatest({ALIVE}, _new_alive) AS {ALIVE}",
            f"greatest({DELETED}, _new_deleted) AS {DELETED}",
        ]
        for c in self._columns:
            later = f"{c.new_at} > {c.at} OR ({c.new_at} = {c.at} AND {c.new_by} > {c.by})"
            parts += [
                f"greatest({c.new_at}, {c.at}) AS {c.at}",
                f"CASE WHEN {later} THEN {c.new} ELSE {c.name} END AS {c.name}",
            ]
        return f"SELECT {_listed(parts)} FROM beside"  # noqa: S608 - quoted

    def _stamp(self, of: str) -> str:
        """The stamp, of which `STAMPS` records the difference from the row's."""
        ms, counter = (f"coalesce({self._number(f'{of}.{n}')}, 0)" for n in _AGO)
        return f"{HLC} - {ms} * {1 << COUNTER_BITS} - {counter}"

    def _client(self, of: str) -> str:
        said = self._dialect.scalar.format(json=STAMPS, path=_path(f"{of}.client_id"))
        return f"coalesce({said}, {CLIENT})"

    def _number(self, path: str) -> str:
        said = self._dialect.scalar.format(json=STAMPS, path=_path(path))
        return f"CAST({said} AS BIGINT)"

    def _last(self, value: str) -> str:
        return self._dialect.last.format(value=value, hlc=HLC, client=CLIENT)


class _Column(NamedTuple):
    """A column, and the names of its intermediate parts; no table's own column begins with `_`."""

    name: str
    """Quoted."""
    written: str
    number: int

    @property
    def at(self) -> str:
        """The stamp of the stored write, 0 if there is none."""
        return f"_at{self.number}"

    @property
    def by(self) -> str:
        """Its client."""
        return f"_by{self.number}"

    @property
    def new(self) -> str:
        """The waiting value."""
        return f"_new{self.number}"

    @property
    def new_at(self) -> str:
        """Its stamp, 0 if none waits."""
        return f"_new_at{self.number}"

    @property
    def new_by(self) -> str:
        """Its client."""
        return f"_new_by{self.number}"


def _path(path: str) -> str:
    return _text(f"$.{path}")


def _text(value: str) -> str:
    """Return a literal; names in the lake have no quotes, and those that have are doubled."""
    return "'" + value.replace("'", "''") + "'"


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(parts)
