"""Plays a Salesforce organisation over HTTP: its REST API, Bulk API 2.0 queries, and OAuth.

Its clock moves when something happens. Stamps are cut to seconds, as Salesforce's are.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from lakesync.connectors import Storage
from lakesync.systems.salesforce.salesforce_api import SalesforceSettings
from lakesync.systems.salesforce.salesforce_connector import SalesforceConnector
from tests.support.lake import Objects
from tests.support.vendors.server import Asked, Reply, VendorServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CLIENT_ID, CLIENT_SECRET = "3MVG9", "consumer-secret"
DATA = "/services/data/v62.0"
SOQL = re.compile(
    r"SELECT (?P<fields>[\w, ]+) FROM (?P<name>\w+) WHERE SystemModstamp < (?P<until>\S+)"
    r"(?: AND SystemModstamp >= (?P<since>\S+))?"
    r"(?P<order> ORDER BY SystemModstamp ASC, Id ASC)?"
)
FIELDS = {
    "Id": "id", "Name": "string", "IsDeleted": "boolean", "CreatedDate": "datetime",
    "SystemModstamp": "datetime", "AnnualRevenue": "currency", "NumberOfEmployees": "int",
    "Active__c": "boolean", "Renewal__c": "date", "BillingAddress": "address", "Logo__c": "base64",
    "External__c": "string",
}  # fmt: skip


@dataclass
class Job:
    """A bulk query: asked about so often before it is complete."""

    soql: str
    rows: list[dict[str, Any]]
    state: str = "UploadComplete"


@dataclass
class Sobject:
    fields: Mapping[str, str] = field(default_factory=lambda: dict(FIELDS))
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)


class SalesforceServer(VendorServer):
    """An organisation; also the bench of the contract of connectors, by its accounts' names."""

    table = "Account"
    notices_deletions = True

    def __init__(self) -> None:
        super().__init__()
        self.objects = {"Account": Sobject(), "Contact": Sobject()}
        self.clock = datetime(2026, 5, 4, 10, 0, tzinfo=UTC)
        self.step = timedelta(seconds=3)
        self.page_max = 2_000
        self.bulk_rows_min = 20_000
        self.usage = (10, 15_000)
        self.is_secret_right = True
        self.sessions: set[str] = set()
        self.logins = 0
        self.locators: dict[str, tuple[list[dict[str, Any]], list[str]]] = {}
        self.jobs: dict[str, Job] = {}
        self.job_states = ["InProgress", "JobComplete"]
        self.before_each: Callable[[Asked], None] | None = None
        self.storage = Storage(Objects(), "g", "c")
        self._ids = itertools.count(1)
        self._made: list[SalesforceConnector] = []

    # ---- what people do ---------------------------------------------------------------------

    def now_s(self) -> float:
        return self.clock.timestamp()

    def tick(self) -> datetime:
        self.clock += self.step
        return self.clock

    def put(self, rows: Mapping[str, Any]) -> None:
        """Create or change accounts, by id."""
        for row_id, value in rows.items():
            self.change(row_id, Name=value)
        self.clock += timedelta(seconds=5)  # nobody looks while they are typing

    def change(self, row_id: str, *, sobject: str = "Account", **fields: Any) -> dict[str, Any]:
        now = self.tick()
        rows = self.objects[sobject].rows
        rows[row_id] = {
            "CreatedDate": now, **rows.get(row_id, {}), **fields,
            "Id": row_id, "SystemModstamp": now.replace(microsecond=0), "IsDeleted": False,
        }  # fmt: skip
        return rows[row_id]

    def delete(self, row_id: str) -> None:
        self.change(row_id)["IsDeleted"] = True
        self.clock += timedelta(seconds=5)

    # ---- the bench --------------------------------------------------------------------------

    def settings(self, **more: Any) -> SalesforceSettings:
        return SalesforceSettings.model_validate(
            {"instance": self.url, "clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET,
             "tables": [{"name": name} for name in self.objects],
             "bulkRowsMin": self.bulk_rows_min} | more
        )  # fmt: skip

    def connector(self, **more: Any) -> SalesforceConnector:
        self._made.append(SalesforceConnector(self.settings(**more), self.storage, self.outside))
        return self._made[-1]

    def value(self, columns: Mapping[str, Any]) -> Any:
        return columns["Name"]

    def close(self) -> None:
        for each in self._made:
            each.close()
        super().close()

    # ---- the API ----------------------------------------------------------------------------

    def answer(self, asked: Asked) -> Reply:
        if self.before_each:
            self.before_each(asked)
        if asked.path == "/services/oauth2/token":
            return self._token(asked)
        if asked.headers.get("authorization", "").removeprefix("Bearer ") not in self.sessions:
            message = {"message": "Session expired or invalid", "errorCode": "INVALID_SESSION_ID"}
            return Reply(401, [message])
        used, most = self.usage
        self.usage = (used + 1, most)
        reply = self._served(asked, asked.path.removeprefix(f"{DATA}/"))
        limit = {"sforce-limit-info": f"api-usage={used + 1}/{most}"}
        return reply._replace(headers={**reply.headers, **limit})

    def _served(self, asked: Asked, path: str) -> Reply:
        for method, pattern, name in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == asked.method:
                answered: Reply = getattr(self, f"_{name}")(asked, *match.groups())
                return answered
        return _error(404, "NOT_FOUND", "The requested resource does not exist")

    def _token(self, asked: Asked) -> Reply:
        form = {name: values[0] for name, values in parse_qs(asked.body.decode()).items()}
        right = {
            "grant_type": "client_credentials", "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
        }  # fmt: skip
        if form != right or not self.is_secret_right:
            fault = {"error": "invalid_client", "error_description": "invalid client credentials"}
            return Reply(400, fault)
        self.logins += 1
        self.sessions.add(f"session-{self.logins}")
        return Reply(body={"access_token": f"session-{self.logins}", "instance_url": self.url,
                           "token_type": "Bearer"})  # fmt: skip

    def _limits(self, _: Asked) -> Reply:
        return Reply(body={"DailyApiRequests": {"Max": self.usage[1], "Remaining": 1}})

    def _describe(self, _: Asked, name: str) -> Reply:
        if name not in self.objects:
            return _error(404, "NOT_FOUND", "The requested resource does not exist")
        fields = [{"name": each, "type": kind} for each, kind in self.objects[name].fields.items()]
        return Reply(body={"name": name, "queryable": True, "fields": fields})

    def _create(self, asked: Asked, name: str) -> Reply:
        fields = asked.json()
        unknown = fields.keys() - self.objects[name].fields.keys()
        if unknown:
            return _error(400, "INVALID_FIELD", f"No such column '{unknown.pop()}'")
        row_id = f"001{next(self._ids):015}"
        self.change(row_id, sobject=name, **fields)
        return Reply(201, {"id": row_id, "success": True, "errors": []})

    def _update(self, asked: Asked, name: str, row_id: str) -> Reply:
        if row_id not in self.objects[name].rows:
            return _error(404, "NOT_FOUND", "Provided external ID field does not exist")
        self.change(row_id, sobject=name, **asked.json())
        return Reply(204)

    def _upsert(self, asked: Asked, name: str, column: str, value: str) -> Reply:
        row = self._row(name, column, value)
        if row is None:
            row_id = f"001{next(self._ids):015}"
            self.change(row_id, sobject=name, **asked.json(), **{column: unquote(value)})
            return Reply(201, {"id": row_id, "success": True, "created": True})
        self.change(row["Id"], sobject=name, **asked.json())
        return Reply(200, {"id": row["Id"], "success": True, "created": False})

    def _by_external_id(self, _: Asked, name: str, column: str, value: str) -> Reply:
        row = self._row(name, column, value)
        if row is None:
            return _error(404, "NOT_FOUND", "The requested resource does not exist")
        return Reply(body={"Id": row["Id"]})

    def _row(self, name: str, column: str, value: str) -> dict[str, Any] | None:
        rows = self.objects[name].rows.values()
        return next((row for row in rows if row.get(column) == unquote(value)), None)

    def _query(self, asked: Asked, kind: str) -> Reply:
        soql = asked.query["q"]
        counts = re.fullmatch(r"SELECT COUNT\(\) FROM (\w+)", soql)
        if counts:
            return Reply(body={"totalSize": len(self.objects[counts[1]].rows), "done": True,
                               "records": []})  # fmt: skip
        match = SOQL.fullmatch(soql)
        if match is None or not match["order"]:
            return _error(400, "MALFORMED_QUERY", soql)
        wanted = match["fields"].split(", ")
        rows = self._selected(match, with_deleted=kind == "queryAll")
        batch = int(asked.headers["sforce-query-options"].partition("=")[2])
        assert 200 <= batch <= 2_000
        return self._paged(rows, wanted, min(batch, self.page_max))

    def _selected(self, match: re.Match[str], *, with_deleted: bool) -> list[dict[str, Any]]:
        until, since = _time(match["until"]), _time(match["since"] or "1970-01-01T00:00:00Z")
        rows = [
            dict(row) for row in self.objects[match["name"]].rows.values()
            if since <= row["SystemModstamp"] < until and (with_deleted or not row["IsDeleted"])
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (row["SystemModstamp"], row["Id"]))

    def _paged(self, rows: list[dict[str, Any]], wanted: list[str], batch: int) -> Reply:
        page, more = rows[:batch], rows[batch:]
        answer: dict[str, Any] = {
            "totalSize": len(rows), "done": not more,
            "records": [
                {"attributes": {}, **{name: _json(row.get(name)) for name in wanted}}
                for row in page
            ],
        }  # fmt: skip
        if more:
            locator = f"01g{next(self._ids):06}-{batch}"
            self.locators[locator] = (more, wanted)
            answer["nextRecordsUrl"] = f"{DATA}/query/{locator}"
        return Reply(body=answer)

    def _more(self, _: Asked, locator: str) -> Reply:
        if locator not in self.locators:
            return _error(400, "INVALID_QUERY_LOCATOR", "invalid query locator")
        rows, wanted = self.locators[locator]
        return self._paged(rows, wanted, min(2_000, self.page_max))

    def _begin(self, asked: Asked) -> Reply:
        body = asked.json()
        match = SOQL.fullmatch(body["query"])
        if match is None or body["operation"] not in {"query", "queryAll"}:
            return _error(400, "MALFORMED_QUERY", body["query"])
        job = f"750{next(self._ids):06}"
        wanted = match["fields"].split(", ")
        rows = self._selected(match, with_deleted=body["operation"] == "queryAll")
        self.jobs[job] = Job(
            body["query"], [{name: row.get(name) for name in wanted} for row in rows]
        )
        return Reply(body={"id": job, "state": "UploadComplete"})

    def _state(self, _: Asked, job: str) -> Reply:
        state = self.job_states.pop(0) if len(self.job_states) > 1 else self.job_states[0]
        self.jobs[job].state = state
        return Reply(body={"id": job, "state": state})

    def _results(self, asked: Asked, job: str) -> Reply:
        if self.jobs[job].state != "JobComplete":
            return _error(400, "INVALIDJOBSTATE", "the job is not complete")
        rows, start = self.jobs[job].rows, int(asked.query.get("locator", 0))
        end = start + min(int(asked.query["maxRecords"]), self.page_max)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(rows[0]) if rows else ["Id"], quoting=csv.QUOTE_ALL)
        writer.writeheader()
        some = rows[start:end]
        writer.writerows({name: _csv(value) for name, value in row.items()} for row in some)
        headers = {
            "sforce-locator": str(end) if end < len(rows) else "null",
            "sforce-numberofrecords": str(len(some)),
        }
        return Reply(200, text.getvalue().encode(), {**headers, "content-type": "text/csv"})


_ROUTES = [
    ("POST", r"sobjects/(\w+)", "create"),
    ("PATCH", r"sobjects/(\w+)/(\w+)", "update"),
    ("PATCH", r"sobjects/(\w+)/(\w+)/(.+)", "upsert"),
    ("GET", r"sobjects/(\w+)/(\w+__c)/(.+)", "by_external_id"),
    ("GET", "limits", "limits"),
    ("GET", r"sobjects/(\w+)/describe", "describe"),
    ("GET", "(query|queryAll)", "query"),
    ("GET", "query/([^/]+)", "more"),
    ("POST", "jobs/query", "begin"),
    ("GET", "jobs/query/([^/]+)", "state"),
    ("GET", "jobs/query/([^/]+)/results", "results"),
]


def _error(status: int, code: str, message: str) -> Reply:
    return Reply(status, [{"errorCode": code, "message": message}])


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S}.000+0000"
    return value


def _csv(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S}.000Z"
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
