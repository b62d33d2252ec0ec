"""The order in which a bootstrap reads tables: all, or those for which the decision changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakesync.core.messages import Resync
from lakesync.core.scope import NOTHING, OTHERS, UNKNOWN, Scope
from lakesync.core.snapshot_order import place_by

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from lakesync.core.clock import Stamp


class AllTables:
    """The tables of a snapshot: those wanted first, then the others by name."""

    def __init__(self, names: Iterable[str], scope: Scope, first: tuple[str, ...] = ()) -> None:
        self._place_of = place_by(first)
        self._names = sorted(names, key=self._place_of)
        self._scope = scope

    def begin_next(self) -> str:
        """Return none: the first table is the one where it began."""
        return ""

    def following(self, table: str) -> str:
        """Return the table behind the given one; empty behind the last."""
        at = self._place_of(table)
        return next((name for name in self._names if self._place_of(name) > at), "")

    def before(self, table: str) -> list[str]:
        """Return the tables that are read before the given one; all of them if it is empty."""
        at = self._names.index(table) if table in self._names else len(self._names)
        return self._names[:at]

    def scope_text(self) -> str:
        """Return the scope of the rows that were read."""
        return self._scope.text()

    def begun(self, horizons: Mapping[str, Stamp]) -> Resync | None:
        """Return none: all of them begin with the first page."""
        del horizons
        return None


class ChangedTables:
    """The tables for which a client's scope differs from the scope in force.

    The client hands back the scope of what it holds. In the scope of each page, finished tables
    have their new digest, and a table in progress has a digest that equals none. So the scope
    contains the whole progress, and a second change in the meantime leads only to the tables that
    it concerns.

    A unit is a table that either scope names, or all others together.

    Args:
        before: the scope of what the client holds.
        now: the scope in force.
        known: tables that have a schema or were flushed.
        omitted: gives the columns of a unit that the scope in force leaves out.
    """

    def __init__(
        self,
        before: Scope,
        now: Scope,
        known: set[str],
        omitted: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        self._progress = before
        self._omitted = omitted
        self.now = now
        self.known = known
        self.named = {*before.tables, *now.tables}
        self._begun: list[str] = []

    @property
    def are_listed(self) -> bool:
        """Return whether both scopes were short enough to list digests by table."""
        return self._progress.is_listed and self.now.is_listed

    def units(self) -> list[str]:
        """Return the unfinished units, in order."""
        return self.now.changed(self._progress)

    def is_under_way(self, table: str) -> bool:
        """Return whether a table is being read."""
        return bool(table) and self._progress.of(self._unit(table)) == UNKNOWN

    def begin_next(self) -> str:
        """Begin the next unit that has a table to read; give its table, empty if all are done."""
        for unit in self.units():
            self._begun.append(unit)
            # Tables named by either scope get entries of their own, before the digest of `OTHERS`
            # changes.
            named = {table: self._progress.of(table) for table in self.named}
            self._progress = Scope(self._progress.others, named).marked(unit, UNKNOWN)
            if self.now.of(unit) != NOTHING:
                table = unit or self._other_behind("")
                if table:
                    return table
            self._finish(unit)
        return ""

    def following(self, table: str) -> str:
        """Return the table behind the given one, in its unit; empty behind the last."""
        unit = self._unit(table)
        behind = self._other_behind(table) if unit == OTHERS else ""
        if not behind:
            self._finish(unit)
        return behind

    def scope_text(self) -> str:
        """Return the scope of the rows that were read."""
        return (self._progress if self.units() else self.now).text()

    def begun(self, horizons: Mapping[str, Stamp]) -> Resync | None:
        """Return the announcement of the units that began with this page; None if none did."""
        if not self._begun:
            return None
        tables = tuple(unit for unit in self._begun if unit != OTHERS)
        named = tuple(sorted(self.named)) if OTHERS in self._begun else None
        # A client may hold its own writes to a row whose deletion it could not see. Tables that it
        # does not see are not named: nothing of them is sent.
        omitted = {unit: tuple(sorted(self._omitted(unit))) for unit in self._begun}
        resync = Resync(
            tables, named, omitted={unit: names for unit, names in omitted.items() if names}
        )
        of_tables = {
            table: horizon
            for table, horizon in horizons.items()
            if resync.concerns(table) and self.now.of(table) != NOTHING
        }
        return replace(resync, tombstone_horizons=of_tables)

    def _unit(self, table: str) -> str:
        return table if table in self.named else OTHERS

    def _other_behind(self, table: str) -> str:
        others = sorted(self.known - self.named)
        return next((name for name in others if name > table), "")

    def _finish(self, unit: str) -> None:
        self._progress = self._progress.marked(unit, self.now.of(unit))
