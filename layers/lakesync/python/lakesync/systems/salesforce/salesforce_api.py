"""The API of Salesforce: how a connector is configured for it, and the requests to it.

Rules of requests
    1. A session that ended is renewed once for a request; refused credentials are an error that an
       operator must repair.
    2. Of the organisation's requests of a day a share is left to others: Salesforce says with each
       answer how many were made.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from urllib.parse import urlencode

from pydantic import Field, SecretStr, field_validator, model_validator

from lakesync.connectors.http import CREDENTIALS, Caller, reason_in
from lakesync.connectors.pages import identifier
from lakesync.connectors.port import (
    OVERLAP_S_MAX,
    TABLES_POLLED_MAX,
    Name,
    NamedTable,
    Settings,
)
from lakesync.errors import AdapterFailed, AdapterQuotaExceeded, AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from typing import Self

    from lakesync.connectors.http import Answer
    from lakesync.connectors.port import Outside
    from lakesync.errors import LakeSyncError

# --- settings -------------------------------------------------------------------------------------


FIELDS_MAX = 500
"""Fields of one object that are read; each is a column."""
ApiName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,79}$")]
"""The name of an object or field: it becomes part of queries, so no other text is allowed."""


class SalesforceTable(NamedTable):
    """One object that is read."""

    name: ApiName = Field(description="The object's API name: Account, Invoice__c.")
    as_: Name | None = Field(None, alias="as", description="Its name in the gateway.")
    fields: list[ApiName] | None = Field(
        None, min_length=1, max_length=FIELDS_MAX, description="Only these fields; else all."
    )

    @property
    def table(self) -> str:
        return self.as_ or identifier(self.name)


class SalesforceOrg(Settings):
    """The address of a Salesforce organisation, and the account for requests."""

    instance: str = Field(max_length=255, description="https://….my.salesforce.com")
    client_id: Name = Field(
        description="The consumer key of a connected app with the flow for client credentials."
    )
    client_secret: SecretStr = Field(description="Its consumer secret.")
    limit_share: int = Field(
        80, ge=1, le=100,
        description="Of the organisation's API requests of a day, the percentage up to which this "
        "asks: what is left is for others.",
    )  # fmt: skip

    @field_validator("instance")
    @classmethod
    def _is_origin(cls, value: str) -> str:
        instance = value.rstrip("/")
        scheme, _, host = instance.partition("://")
        if scheme not in {"https", "http"} or not host or set("/@?# \\") & set(host):
            raise ValueError("instance is https:// and your domain at Salesforce, nothing more")
        return instance


def _usual() -> list[SalesforceTable]:
    names = ("Account", "Contact", "Lead", "Opportunity")
    return [SalesforceTable.model_validate({"name": name}) for name in names]


class SalesforceSettings(SalesforceOrg):
    """A Salesforce organisation that is polled."""

    tables: list[SalesforceTable] = Field(
        default_factory=_usual, min_length=1, max_length=TABLES_POLLED_MAX
    )
    overlap_s: int = Field(
        300, ge=0, le=OVERLAP_S_MAX,
        description="How long the longest transaction takes: so much is read again at each poll.",
    )  # fmt: skip
    bulk_rows_min: int = Field(
        20_000, ge=0,
        description="From how many rows an object's first load is left to a bulk query.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names = [table.name.lower() for table in self.tables]
        if len(set(names)) < len(names):
            raise ValueError("an object is named twice")
        return self

    def named(self) -> Mapping[str, str]:
        """Return the tables by Salesforce's name, with the gateway's."""
        return {table.name: table.table for table in self.tables}


# --- requests -------------------------------------------------------------------------------------


VERSION: Final = "v62.0"
"""Of the API: one that Salesforce keeps for years."""
SOQL_BYTES_MAX: Final = 15_000
"""The longest query: it is part of an address, of which Salesforce accepts 16 KB."""
LIMIT_WAIT_S: Final = 3_600
"""How long is waited once the share of a day's requests is used up."""
LOCK_WAIT_S: Final = 5
"""How long is waited for rows that somebody else changes."""
BATCH_MIN: Final = 200
"""The smallest page that can be requested of Salesforce."""
BATCH_MAX: Final = 2_000
"""The largest page of Salesforce."""
DATA: Final = f"/services/data/{VERSION}"
"""What paths begin with."""
_USED_UP: Final = ("REQUEST_LIMIT_EXCEEDED", "TotalRequests Limit exceeded")
_USAGE: Final = re.compile(r"api-usage=(\d+)/(\d+)")


class Queried(NamedTuple):
    """A page of a query."""

    records: Sequence[Mapping[str, Any]]
    following: str
    """Where the next page is; empty behind the last."""


class BulkPage(NamedTuple):
    """A page of what a bulk query gave."""

    csv: bytes
    rows: int
    """How many it has."""
    locator: str
    """Of the next page; empty behind the last."""


class SalesforceApi:
    """Asks one organisation. Raises `LakeSyncError`, as `lakesync.connectors.http` does."""

    def __init__(self, org: SalesforceOrg, outside: Outside) -> None:
        self._org = org
        self._used = 0.0
        self.caller = Caller(org.instance, outside, {}, refusal=self._refusal)

    def send(self, method: str, path: str, **more: Any) -> Answer:
        """Ask, having logged in; once more if the session has ended."""
        if self._used * 100 >= self._org.limit_share:
            raise AdapterQuotaExceeded(
                f"{self._org.limit_share} % of the organisation's API requests of a day are used: "
                "the rest is left to others",
                retry_after_s=LIMIT_WAIT_S,
            )
        self.log_in_if_needed()
        try:
            return self.caller.send(method, path, **more)
        except AdapterRefused as error:
            if error.field != CREDENTIALS:
                raise
        self._log_in()
        return self.caller.send(method, path, **more)

    def log_in_if_needed(self) -> None:
        """Begin a session, unless there is one."""
        if "authorization" not in self.caller.headers:
            self._log_in()

    def now(self) -> datetime:
        """Return the time by Salesforce's clock, in whole seconds."""
        date = self.send("GET", f"{DATA}/limits").date()
        if date is None:
            raise AdapterFailed("Salesforce's answer has no date")
        return date

    def described(self, name: str) -> Mapping[str, Any]:
        """Return an object's fields.

        Raises:
            NotFound: there is none, or the user may not see it.
        """
        described: Mapping[str, Any] = self.send("GET", f"{DATA}/sobjects/{name}/describe").json()
        return described

    def count(self, soql: str) -> int:
        return int(self.send("GET", f"{DATA}/query", query={"q": soql}).json()["totalSize"])

    def query(self, soql: str, rows_max: int, *, with_deleted: bool) -> Queried:
        if len(urlencode({"q": soql})) > SOQL_BYTES_MAX:
            raise AdapterRefused("the object has too many fields: name those that are wanted")
        batch = min(max(rows_max, BATCH_MIN), BATCH_MAX)
        options = {"sforce-query-options": f"batchSize={batch}"}
        path = f"{DATA}/queryAll" if with_deleted else f"{DATA}/query"
        return _page(self.send("GET", path, query={"q": soql}, headers=options).json())

    def following(self, path: str) -> Queried:
        return _page(self.send("GET", path).json())

    def begin_bulk(self, soql: str, *, with_deleted: bool) -> str:
        """Have a query carried out in bulk; returns its job."""
        body = {"operation": "queryAll" if with_deleted else "query", "query": soql}
        return str(self.send("POST", f"{DATA}/jobs/query", body=body).json()["id"])

    def bulk_state(self, job: str) -> str:
        return str(self.send("GET", f"{DATA}/jobs/query/{job}").json()["state"])

    def bulk_page(self, job: str, locator: str, rows_max: int) -> BulkPage:
        answer = self.send(
            "GET", f"{DATA}/jobs/query/{job}/results",
            query={"locator": locator or None, "maxRecords": rows_max},
            headers={"accept": "text/csv"},
        )  # fmt: skip
        following = answer.headers["sforce-locator"]
        rows = int(answer.headers["sforce-numberofrecords"])
        return BulkPage(answer.body, rows, "" if following == "null" else following)

    def close(self) -> None:
        self.caller.close()

    def _log_in(self) -> None:
        self.caller.headers.pop("authorization", None)
        form = {
            "grant_type": "client_credentials",
            "client_id": self._org.client_id,
            "client_secret": self._org.client_secret.get_secret_value(),
        }
        answer = self.caller.send(
            "POST", "/services/oauth2/token", body=urlencode(form).encode(),
            headers={"content-type": "application/x-www-form-urlencoded"},
        ).json()  # fmt: skip
        self.caller.headers["authorization"] = f"Bearer {answer['access_token']}"

    def _refusal(self, answer: Answer) -> LakeSyncError | None:
        usage = _USAGE.search(answer.headers.get("sforce-limit-info", ""))
        if usage and int(usage[2]):
            self._used = int(usage[1]) / int(usage[2])
        reason = reason_in(answer) if answer.status >= 400 else ""  # noqa: PLR2004
        if any(words in reason for words in _USED_UP):
            return AdapterQuotaExceeded(
                "the organisation's API requests of a day are used up", retry_after_s=LIMIT_WAIT_S
            )
        if "UNABLE_TO_LOCK_ROW" in reason:
            return AdapterQuotaExceeded(
                "somebody else changes the same rows", retry_after_s=LOCK_WAIT_S
            )
        if '"invalid_client' in reason or '"invalid_grant' in reason:
            return AdapterRefused("Salesforce refuses the client id and secret", field=CREDENTIALS)
        return None


def _page(answer: Mapping[str, Any]) -> Queried:
    following = "" if answer["done"] else answer["nextRecordsUrl"]
    return Queried(answer["records"], following)
