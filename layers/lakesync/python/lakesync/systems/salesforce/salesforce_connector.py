"""Salesforce as a source: any object that has a time of change, deletions included.

Rules of this module
    1. `SystemModstamp` has a resolution of a second. A row may change again within the current
       second, so a query ends before now, by Salesforce's clock. The next query begins before that
       end, by the duration of the longest transaction.
    2. The pages of a query are linked. If a link is no longer accepted, the query is restarted at
       the last change that was read.
    3. A first load of many rows is an asynchronous bulk query. The poll waits for it, and then
       continues with the data as of the bulk query's start.
    4. A field that is new here has values in rows that did not change: the object is read again.
       Which fields are known is stored before its query begins, with how far the object was then;
       the query is of all rows until the object is further than that.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from lakesync.connectors.http import NOT_AS_DESCRIBED, changes_in
from lakesync.connectors.pages import identifier, instant, microseconds, utc_text
from lakesync.connectors.port import (
    Change,
    ConnectorType,
    SourceColumn,
    SourcePage,
    SourceTable,
    digest,
)
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    LakeSyncError,
    NotFound,
    ValidationFailed,
)
from lakesync.result import Err, Ok
from lakesync.systems.salesforce.salesforce_api import Queried, SalesforceApi, SalesforceSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.connectors.port import Connector, Outside, Storage, Unreadable
    from lakesync.result import Result
    from lakesync.systems.salesforce.salesforce_api import SalesforceTable

# --- columns --------------------------------------------------------------------------------------


CHANGED: Final = "SystemModstamp"
DELETED: Final = "IsDeleted"
_TYPES: Final[Mapping[str, str]] = {
    "boolean": "boolean", "int": "integer", "long": "integer", "double": "number",
    "currency": "number", "percent": "number", "date": "date", "datetime": "timestamp",
}  # fmt: skip
"""What is not text."""
_LEFT_OUT: Final = frozenset({"address", "location", "base64", "complexvalue", "anyType"})
"""Types composed of other fields, and types that queries of many rows do not give."""


class Plan(NamedTuple):
    """How an object is read."""

    name: str
    fields: Mapping[str, str]
    """Types of columns, by the names of fields."""
    has_deleted: bool
    """Its deleted rows are marked as such."""

    def select(self, where: str) -> str:
        deleted = [DELETED] if self.has_deleted and DELETED not in self.fields else []
        return f"SELECT {', '.join([*self.fields, *deleted])} FROM {self.name} {where}"  # noqa: S608 - names that Salesforce gave or that were checked


def plan_of(table: SalesforceTable, described: Mapping[str, Any]) -> Plan:
    """Return how an object is read.

    Raises:
        AdapterRefused: it cannot be read, or lacks a configured field.
    """
    known = {
        each["name"]: _TYPES.get(each["type"], "string")
        for each in described["fields"]
        if each["type"] not in _LEFT_OUT and not each.get("deprecatedAndHidden")
    }
    if CHANGED not in known or not described.get("queryable", True):
        raise AdapterRefused(f"{table.name} tells no {CHANGED}: it cannot be polled")
    wanted = dict.fromkeys(("Id", *(table.fields or known), CHANGED))
    missing = [name for name in wanted if name not in known]
    if missing:
        raise AdapterRefused(
            f"{table.name} has no field {', '.join(missing)}, or the user may not read it"
        )
    return Plan(table.name, {name: known[name] for name in wanted}, DELETED in known)


def source_table(plan: Plan) -> SourceTable:
    columns = [
        SourceColumn(name, kind, nullable=name != "Id") for name, kind in plan.fields.items()
    ]
    return SourceTable(plan.name, tuple(columns), ("Id",))


def changes_of(
    plan: Plan, records: Iterable[Mapping[str, Any]]
) -> tuple[list[Change], list[Unreadable]]:
    """Return records as changes; values are JSON values, or text if they are from CSV."""

    def change(row_id: str, record: Mapping[str, Any]) -> Change:
        changed_us = microseconds(instant(record[CHANGED]))
        gone = _value(record.get(DELETED), "boolean") is True
        columns = {
            identifier(name): _value(record.get(name), kind) for name, kind in plan.fields.items()
        }
        return Change(row_id, None if gone else columns, changed_us)

    return changes_in(records, "Id", change)


def last_changed(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the latest change time of the records; empty if none has one."""
    for record in reversed(records):
        try:
            instant(record[CHANGED])
        except NOT_AS_DESCRIBED:
            continue
        return str(record[CHANGED])
    return ""


def records_in(plan: Plan, body: bytes, rows_expected: int) -> Sequence[Mapping[str, Any]]:
    """Return the records of a page of CSV.

    Raises:
        AdapterFailed: it is cut off.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(body.decode("utf-8-sig"), newline=""), strict=True))
    except (csv.Error, UnicodeDecodeError) as exc:
        raise AdapterFailed("the bulk query's answer was cut off") from exc
    if len(rows) != rows_expected or any(None in row.values() or None in row for row in rows):
        raise AdapterFailed(f"the bulk query's answer for {plan.name} was cut off")
    return rows


def _value(value: Any, kind: str) -> Any:
    if value is None or value == "":
        return None
    if kind == "timestamp":
        return utc_text(instant(value), "milliseconds")
    if kind == "boolean":
        return value if isinstance(value, bool) else {"true": True, "false": False}[value.lower()]
    if kind == "integer":
        return int(Decimal(str(value)))
    if kind == "number":
        return float(value)
    return str(value)


# --- reading --------------------------------------------------------------------------------------


T = TypeVar("T")

SETTLE_S: Final = 2
"""Changes younger than this wait for the next poll: `SystemModstamp` counts seconds."""
BULK_WAIT_S: Final = 20
"""The wait for a bulk query before its status is requested again."""
_FIELDS: Final = "fields"
"""The folder with the fields that were read of each object."""
_BULK_ENDED: Final = frozenset({"Failed", "Aborted"})


@dataclass
class Place:
    """How far an object is: the cursor. Times are texts in UTC."""

    done: str = ""
    """Everything up to here was read, except transactions that were open then."""
    since: str = ""
    until: str = ""
    """Where the current query ends; empty if there is none."""
    link: str = ""
    job: str = ""
    locator: str = ""
    no_bulk: bool = False

    def to_text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


class SalesforceConnector:
    """`lakesync.connectors.Connector` of one Salesforce organisation."""

    def __init__(self, settings: SalesforceSettings, storage: Storage, outside: Outside) -> None:
        self._settings = settings
        self._storage = storage
        self._api = SalesforceApi(settings, outside)
        self._tables = {table.name: table for table in settings.tables}
        self._plans: dict[str, Plan] = {}
        self._now: tuple[int, datetime] | None = None

    def check(self) -> Result[str, LakeSyncError]:
        def work() -> str:
            names = [self._plan(name).name for name in self._tables]
            return f"{self._settings.instance} answers, and has {', '.join(names)}."

        return _tried(work)

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        return _tried(lambda: tuple(source_table(self._plan(name)) for name in self._tables))

    def columns(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        return self.discover()

    def read(
        self,
        table: str,
        cursor: str,
        *,
        rows_max: int,
        poll_ms: int,
    ) -> Result[SourcePage, LakeSyncError]:
        place = Place(**json.loads(cursor)) if cursor else Place()

        def work() -> SourcePage:
            plan = self._plan(table)
            if not place.until and self._begins_bulk(plan, place, poll_ms):
                return SourcePage((), place.to_text(), has_more=True)
            return (self._bulk if place.job else self._changed)(plan, place, rows_max)

        return _tried(work)

    def close(self) -> None:
        self._api.close()

    def _plan(self, name: str) -> Plan:
        if name not in self._plans:
            if name not in self._tables:
                raise ValidationFailed(f"this connector does not poll {name[:80]}", field="table")
            try:
                described = self._api.described(name)
            except NotFound as error:
                raise AdapterRefused(
                    f"there is no object {name}, or the user may not see it"
                ) from error
            self._plans[name] = plan_of(self._tables[name], described)
        return self._plans[name]

    def _begun(self, poll_ms: int) -> datetime:
        """Return when a poll began, by Salesforce's clock, or a little later."""
        if self._now is None or self._now[0] != poll_ms:
            self._now = (poll_ms, self._api.now())
        return self._now[1]

    def _begins_bulk(self, plan: Plan, place: Place, poll_ms: int) -> bool:
        """Begin the next query; return whether it is one in bulk."""
        place.until = _text(self._begun(poll_ms) - timedelta(seconds=SETTLE_S))
        place.since = ""
        if not self._reads_whole(plan, place):
            overlap = timedelta(seconds=self._settings.overlap_s)
            place.since = _text(instant(place.done) - overlap)
        elif self._is_large(plan, place):
            with_deleted = bool(place.done) and plan.has_deleted
            place.job = self._api.begin_bulk(plan.select(_until(place)), with_deleted=with_deleted)
        return bool(place.job)

    def _reads_whole(self, plan: Plan, place: Place) -> bool:
        """Return whether all rows are to be read: none were, or new fields have values in them."""
        path = (_FIELDS, digest(plan.name))
        stored = self._storage.read(*path)
        # Without a note it was read by a release before: all fields of now count as known.
        known, begins = (stored["known"], stored["from"]) if stored else (plan.fields, "")
        if plan.fields.keys() - set(known):
            begins = max(begins, place.done)
        noted = {"known": sorted(plan.fields), "from": begins}
        if noted != stored:
            self._storage.write(noted, *path)
        return bool(place.done <= begins)

    def _is_large(self, plan: Plan, place: Place) -> bool:
        if place.no_bulk:
            return False
        counted = self._api.count(f"SELECT COUNT() FROM {plan.name}")  # noqa: S608 - checked
        return counted >= self._settings.bulk_rows_min

    def _changed(self, plan: Plan, place: Place, rows_max: int) -> SourcePage:
        """Return what changed: the next page of the query."""
        page = self._page(plan, place, rows_max)
        changes, unreadable = changes_of(plan, page.records)
        if page.following:
            place.link, place.since = page.following, last_changed(page.records) or place.since
        else:
            place.done, place.since, place.until, place.link = place.until, "", "", ""
        has_more = bool(page.following)
        return SourcePage(tuple(changes), place.to_text(), has_more, tuple(unreadable))

    def _page(self, plan: Plan, place: Place, rows_max: int) -> Queried:
        if place.link:
            try:
                return self._api.following(place.link)
            except (AdapterRefused, NotFound):
                place.link = ""  # too old; any other fault will appear in the query
        since = f" AND {CHANGED} >= {_text(instant(place.since))}" if place.since else ""
        soql = plan.select(f"{_until(place)}{since} ORDER BY {CHANGED} ASC, Id ASC")
        return self._api.query(soql, rows_max, with_deleted=plan.has_deleted)

    def _bulk(self, plan: Plan, place: Place, rows_max: int) -> SourcePage:
        """Return the next page of a bulk query, once Salesforce has carried it out."""
        if not place.locator:
            state = self._api.bulk_state(place.job)
            if state in _BULK_ENDED:  # read it page by page then
                place.job, place.until, place.no_bulk = "", "", True
                return SourcePage((), place.to_text(), has_more=True)
            if state != "JobComplete":
                raise AdapterQuotaExceeded(
                    f"Salesforce prepares the first load of {plan.name}", retry_after_s=BULK_WAIT_S
                )
        page = self._api.bulk_page(place.job, place.locator, rows_max)
        changes, unreadable = changes_of(plan, records_in(plan, page.csv, page.rows))
        place.locator = page.locator
        if not page.locator:
            place.done, place.until, place.job = place.until, "", ""
        has_more = bool(page.locator)
        return SourcePage(tuple(changes), place.to_text(), has_more, tuple(unreadable))


def begun_at(cursor: str, at_us: int) -> str:
    """Return the cursor from which changes since a time are read again.

    That is the current cursor, if it is earlier, or if the first load is not complete.
    """
    place = Place(**json.loads(cursor)) if cursor else Place()
    begins = datetime.fromtimestamp(at_us // 1_000_000, UTC)
    if not place.done or instant(place.done) <= begins:
        return cursor
    return Place(done=_text(begins)).to_text()


def _until(place: Place) -> str:
    return f"WHERE {CHANGED} < {place.until}"


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _tried(work: Callable[[], T]) -> Result[T, LakeSyncError]:
    try:
        return Ok(work())
    except LakeSyncError as error:
        return Err(error)
    except NOT_AS_DESCRIBED as exc:
        message = f"Salesforce's answer is not as its API says: {type(exc).__name__}"
        return Err(AdapterFailed(message))


# --- the type -------------------------------------------------------------------------------------


def _salesforce(settings: SalesforceSettings, storage: Storage, outside: Outside) -> Connector:

    return SalesforceConnector(settings, storage, outside)


def _begins_at(_: SalesforceSettings, __: str, cursor: str, at_us: int) -> str:

    return begun_at(cursor, at_us)


SALESFORCE = ConnectorType(
    "salesforce", "Salesforce", SalesforceSettings, _salesforce, SalesforceSettings.named,
    begins_at=_begins_at,
)  # fmt: skip
