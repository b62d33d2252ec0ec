"""Registrations of connectors as existing clients send them, translated where the meaning is one.

Such a body names its settings after its type (``"postgres": {…}``), and its tables and interval in
``ingest``. What our connectors do otherwise is refused with what to send in its place, as is an
interval below a minute. No refusal repeats a value, because it may be a secret.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from math import ceil
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import Field, StringConstraints, model_validator

from lakesync.core.flows import SCHEDULED
from lakesync.declare import Declaration, Form, Several, checked, text_form
from lakesync.errors import Fault, ValidationFailed

_MINUTE_MS: Final = 60_000
_OURS: Final = frozenset({"configuration", "everyMinutes"})


def translated(body: object) -> object:
    """Return our form of a registration; a body that is no existing client's is returned as it is.

    Raises:
        ValidationFailed: it is an existing client's, and means what no connector of ours does.
    """
    if not isinstance(body, dict) or body.keys() & _OURS:
        return body
    kind = body.get("type")
    model = _BY_TYPE.get(kind) if isinstance(kind, str) else None
    if model is None or not body.keys() & {kind, "ingest"}:
        return body
    if isinstance(model, str):
        raise ValidationFailed(model, field=kind)
    said = checked(model, body, "connector")
    ours = {name: body[name] for name in ("type", "name", "check") if name in body}
    return ours | {
        "configuration": said.configuration(),
        "everyMinutes": said.ingest.interval_ms // _MINUTE_MS,
    }


def _interval(value: object) -> int:
    if type(value) is not int:
        raise ValueError("is a whole number of milliseconds")
    if value < _MINUTE_MS:
        raise ValueError(f"is at least {_MINUTE_MS}: {SCHEDULED}")
    if value % _MINUTE_MS:
        raise ValueError(f"is a multiple of {_MINUTE_MS}, a minute")
    return value


class _Ingest(Declaration):
    interval_ms: Annotated[int, Form(_interval, {"type": "integer"})] = _MINUTE_MS
    chunk_size: Any = None
    memory_budget_bytes: Any = None


class _Registration(Declaration, ABC):
    type: Any
    name: Any = None
    check: Any = None
    ingest: _Ingest = _Ingest()

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """Return the settings in our form."""


# --- databases ------------------------------------------------------------------------------------


_Text = Annotated[str, StringConstraints(min_length=1)]
_TLS: Final = {
    "disable": "off", "prefer": "encrypt", "require": "encrypt", "verify-full": "verify",
}  # fmt: skip


def _connection(kind: str, *schemes: str) -> Form:
    def read(value: object) -> dict[str, Any]:
        try:
            url = urlsplit(value if isinstance(value, str) else "")
            port, query = url.port, dict(parse_qsl(url.query, strict_parsing=bool(url.query)))
        except ValueError:
            url, port, query = urlsplit(""), None, {}
        mode = query.pop("sslmode", None)
        database = unquote(url.path.removeprefix("/"))
        parts = url.scheme in schemes, url.hostname, url.username, url.password, database
        if not all(parts) or query or mode not in {None, *_TLS}:
            raise ValueError(
                f"must be {kind}://user:password@host/database, with a port and "
                f"?sslmode={'|'.join(_TLS)} if need be: send other settings as a configuration"
            )
        return {
            "host": url.hostname,
            "database": database,
            "user": unquote(str(url.username)),
            "password": unquote(str(url.password)),
            **({} if port is None else {"port": port}),
            **({} if mode is None else {"tls": _TLS[mode]}),
        }

    return Form(read, {"type": "string"})


class _Strategy(Declaration):
    type: Literal["cursor", "diff"]
    cursor_column: _Text | None = None
    lookback_ms: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _has_its_cursor(self) -> Self:
        if (self.type == "cursor") != (self.cursor_column is not None):
            raise Several(Fault(".cursorColumn", "is for the type cursor, which needs it"))
        return self


class _Table(Declaration):
    table: _Text
    query: _Text
    row_id_column: _Text = "id"
    strategy: _Strategy

    def ours(self) -> dict[str, Any]:
        """Return the table in our form."""
        cursor = self.strategy.cursor_column
        return {
            "name": self.table,
            "as": self.table,
            "query": self.query.rstrip("; \n\t"),
            "key": [self.row_id_column],
        } | ({} if cursor is None else {"cursorColumn": cursor})


class _Tables(_Ingest):
    tables: list[_Table] = Field(default_factory=list)


class _Database(_Registration):
    ingest: _Tables = _Tables()

    def configuration(self) -> dict[str, Any]:
        tables = self.ingest.tables
        if not tables:
            raise ValidationFailed(
                "a database of which nothing is ingested is a destination here: declare it by POST "
                "/admin/destinations, and pull from it by its name",
                field="ingest.tables",
            )
        looks_back = [each.strategy.lookback_ms for each in tables]
        overlaps = [ceil(ms / 1_000) for ms in looks_back if ms is not None]
        overlap = {"overlapS": max(overlaps)} if overlaps else {}
        connection: dict[str, Any] = getattr(self, self.type).connection_string
        return connection | {"tables": [each.ours() for each in tables]} | overlap


class _PostgresPlace(Declaration):
    connection_string: Annotated[Any, _connection("postgres", "postgres", "postgresql")]


class _MySqlPlace(Declaration):
    connection_string: Annotated[Any, _connection("mysql", "mysql")]


class _Postgres(_Database):
    postgres: _PostgresPlace


class _MySql(_Database):
    mysql: _MySqlPlace


# --- services -------------------------------------------------------------------------------------


_PROJECTS: Final = re.compile(
    r"\s*project\s*(?:=\s*(?P<one>[A-Z][A-Z0-9_]+)|in\s*\((?P<some>[A-Z0-9_,\s]+)\))\s*",
    re.IGNORECASE,
)
_DOMAIN: Final = text_form(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}").fullmatch,
    "is mycompany for mycompany.atlassian.net",
)


def _projects(value: object) -> list[str]:
    chosen = _PROJECTS.fullmatch(value) if isinstance(value, str) else None
    if value and chosen is None:
        raise ValueError(
            "only project = KEY and project in (KEY, …) are translated, to projects: filter other "
            "issues by sync rules"
        )
    return re.findall(r"\w+", (chosen["one"] or chosen["some"]).upper()) if chosen else []


class _JiraSite(Declaration):
    domain: Annotated[str, _DOMAIN]
    email: _Text
    api_token: _Text
    jql: Annotated[Any, Form(_projects, {"type": "string"})] = None
    include_comments: bool = True
    include_projects: bool = True


class _Jira(_Registration):
    jira: _JiraSite

    def configuration(self) -> dict[str, Any]:
        site = self.jira
        wanted = {"comments": site.include_comments, "projects": site.include_projects}
        names = ["issues", *(name for name, is_wanted in wanted.items() if is_wanted)]
        return {
            "site": f"https://{site.domain}.atlassian.net",
            "email": site.email,
            "apiToken": site.api_token,
            "tables": [{"name": name} for name in names],
        } | ({"projects": site.jql} if site.jql else {})


_BY_TYPE: Final[dict[str, type[_Registration] | str]] = {
    "postgres": _Postgres,
    "mysql": _MySql,
    "jira": _Jira,
    "bigquery": "BigQuery's key is in a file, which no function has: send the settings as a "
    "configuration, as GET /connectors/types describes them, or declare a destination",
    "salesforce": "Salesforce is asked by the flow for client credentials here, not with a user's "
    'password: give the connected app that flow, and send {"type": "salesforce", "name": …, '
    '"configuration": {"instance": "https://….my.salesforce.com", "clientId": …, '
    '"clientSecret": …}}',
}
"""The models by type; or what to do where none is translated."""
