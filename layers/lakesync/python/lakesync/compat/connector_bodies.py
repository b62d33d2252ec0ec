"""Registrations of connectors as existing clients send them, translated where the meaning is one.

Such a body names its settings after its type (``"postgres": {…}``), and its tables and interval in
``ingest``. What our connectors do otherwise is refused with what to send in its place, as is an
interval below a minute. No refusal repeats a value, because it may be a secret.
"""

from __future__ import annotations

import re
from math import ceil
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from lakesync.core.flows import SCHEDULED
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MINUTE_MS: Final = 60_000
_OURS: Final = frozenset({"configuration", "everyMinutes"})
_SHARED: Final = frozenset({"type", "name", "ingest", "check"})
_SCHEMES: Final = {"postgres": ("postgres", "postgresql"), "mysql": ("mysql",)}
_TLS: Final = {
    "disable": "off", "prefer": "encrypt", "require": "encrypt", "verify-full": "verify",
}  # fmt: skip
_PROJECTS: Final = re.compile(
    r"\s*project\s*(?:=\s*(?P<one>[A-Z][A-Z0-9_]+)|in\s*\((?P<some>[A-Z0-9_,\s]+)\))\s*",
    re.IGNORECASE,
)
_DOMAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")


def translated(body: object) -> object:
    """Return our form of a registration; a body that is no existing client's is returned as it is.

    Raises:
        ValidationFailed: it is an existing client's, and means what no connector of ours does.
    """
    if not isinstance(body, dict) or body.keys() & _OURS:
        return body
    kind = body.get("type")
    translate = _BY_TYPE.get(kind) if isinstance(kind, str) else None
    if translate is None or not body.keys() & {kind, "ingest"}:
        return body
    _known(body, _SHARED | {str(kind)}, "")
    settings = _object(body, str(kind))
    ingest = _object(body, "ingest") if "ingest" in body else {}
    _known(ingest, {"tables", "intervalMs", "chunkSize", "memoryBudgetBytes"}, "ingest.")
    ours = {name: body[name] for name in ("type", "name", "check") if name in body}
    return ours | {
        "configuration": translate(settings, ingest),
        "everyMinutes": _every_minutes(ingest.get("intervalMs", _MINUTE_MS)),
    }


def _every_minutes(interval_ms: object) -> int:
    field = "ingest.intervalMs"
    if not isinstance(interval_ms, int) or isinstance(interval_ms, bool):
        raise ValidationFailed(f"{field} is a whole number of milliseconds", field=field)
    if interval_ms < _MINUTE_MS:
        raise ValidationFailed(f"{field} is at least {_MINUTE_MS}: {SCHEDULED}", field=field)
    if interval_ms % _MINUTE_MS:
        raise ValidationFailed(f"{field} is a multiple of {_MINUTE_MS}, a minute", field=field)
    return interval_ms // _MINUTE_MS


# --- databases ------------------------------------------------------------------------------------


def _database(kind: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]:
    def translate(settings: Mapping[str, Any], ingest: Mapping[str, Any]) -> dict[str, Any]:
        _known(settings, {"connectionString"}, f"{kind}.")
        place = f"{kind}.connectionString"
        connection = _connection(_text(settings, "connectionString", place), place, kind)
        tables = ingest.get("tables")
        if not isinstance(tables, list) or not tables:
            raise ValidationFailed(
                "a database of which nothing is ingested is a destination here: declare it by POST "
                "/admin/destinations, and pull from it by its name",
                field="ingest.tables",
            )
        read = [_table(table, f"ingest.tables[{at}]") for at, table in enumerate(tables)]
        overlaps = [overlap_s for _, overlap_s in read if overlap_s is not None]
        overlap = {"overlapS": max(overlaps)} if overlaps else {}
        return connection | {"tables": [table for table, _ in read]} | overlap

    return translate


def _connection(text: str, field: str, kind: str) -> dict[str, Any]:
    try:
        url = urlsplit(text)
        port, query = url.port, dict(parse_qsl(url.query, strict_parsing=bool(url.query)))
    except ValueError:
        url, port, query = urlsplit(""), None, {}
    mode = query.pop("sslmode", None)
    database = unquote(url.path.removeprefix("/"))
    parts = url.scheme in _SCHEMES[kind], url.hostname, url.username, url.password, database
    if not all(parts) or query or mode not in {None, *_TLS}:
        raise ValidationFailed(
            f"{field} must be {kind}://user:password@host/database, with a port and "
            f"?sslmode={'|'.join(_TLS)} if need be: send other settings as a configuration",
            field=field,
        )
    return {
        "host": url.hostname,
        "database": database,
        "user": unquote(str(url.username)),
        "password": unquote(str(url.password)),
        **({} if port is None else {"port": port}),
        **({} if mode is None else {"tls": _TLS[mode]}),
    }


def _table(table: object, place: str) -> tuple[dict[str, Any], int | None]:
    """Return our form of an ingested table, and the overlap in seconds that it asks for."""
    fields = _object({place: table}, place)
    _known(fields, {"table", "query", "rowIdColumn", "strategy"}, f"{place}.")
    strategy = _object({f"{place}.strategy": fields.get("strategy")}, f"{place}.strategy")
    row_id = fields.get("rowIdColumn", "id")
    name = _text(fields, "table", f"{place}.table")
    ours = {
        "name": name,
        "as": name,
        "query": _text(fields, "query", f"{place}.query").rstrip("; \n\t"),
        "key": [_text({"rowIdColumn": row_id}, "rowIdColumn", f"{place}.rowIdColumn")],
    }
    match strategy.get("type"):
        case "diff":
            _known(strategy, {"type"}, f"{place}.strategy.")
            return ours, None
        case "cursor":
            _known(strategy, {"type", "cursorColumn", "lookbackMs"}, f"{place}.strategy.")
            column = _text(strategy, "cursorColumn", f"{place}.strategy.cursorColumn")
            return ours | {"cursorColumn": column}, _overlap_s(strategy, f"{place}.strategy")
    raise ValidationFailed("type is cursor or diff", field=f"{place}.strategy.type")


def _overlap_s(strategy: Mapping[str, Any], place: str) -> int | None:
    lookback_ms = strategy.get("lookbackMs")
    if lookback_ms is None:
        return None
    if not isinstance(lookback_ms, int | float) or isinstance(lookback_ms, bool) or lookback_ms < 0:
        raise ValidationFailed(
            "lookbackMs is a number of milliseconds", field=f"{place}.lookbackMs"
        )
    return ceil(lookback_ms / 1_000)


# --- services -------------------------------------------------------------------------------------


def _jira(settings: Mapping[str, Any], ingest: Mapping[str, Any]) -> dict[str, Any]:
    flags = {"comments": "includeComments", "projects": "includeProjects"}
    _known(settings, {"domain", "email", "apiToken", "jql", *flags.values()}, "jira.")
    _known(ingest, {"intervalMs", "chunkSize", "memoryBudgetBytes"}, "ingest.")
    domain = _text(settings, "domain", "jira.domain")
    if _DOMAIN.fullmatch(domain) is None:
        raise ValidationFailed(
            "domain is mycompany for mycompany.atlassian.net", field="jira.domain"
        )
    names = ["issues"] + [name for name, flag in flags.items() if _flag(settings, flag)]
    ours = {
        "site": f"https://{domain}.atlassian.net",
        "email": _text(settings, "email", "jira.email"),
        "apiToken": _text(settings, "apiToken", "jira.apiToken"),
        "tables": [{"name": name} for name in names],
    }
    if not settings.get("jql"):
        return ours
    chosen = _PROJECTS.fullmatch(_text(settings, "jql", "jira.jql"))
    if chosen is None:
        raise ValidationFailed(
            "of jql only project = KEY and project in (KEY, …) are translated, to projects: filter "
            "other issues by sync rules",
            field="jira.jql",
        )
    return ours | {"projects": re.findall(r"\w+", (chosen["one"] or chosen["some"]).upper())}


def _salesforce(_settings: Mapping[str, Any], _ingest: Mapping[str, Any]) -> dict[str, Any]:
    raise ValidationFailed(
        "Salesforce is asked by the flow for client credentials here, not with a user's password: "
        'give the connected app that flow, and send {"type": "salesforce", "name": …, '
        '"configuration": {"instance": "https://….my.salesforce.com", "clientId": …, '
        '"clientSecret": …}}',
        field="salesforce",
    )


def _bigquery(_settings: Mapping[str, Any], _ingest: Mapping[str, Any]) -> dict[str, Any]:
    raise ValidationFailed(
        "BigQuery's key is in a file, which no function has: send the settings as a configuration, "
        "as GET /connectors/types describes them, or declare a destination",
        field="bigquery",
    )


_BY_TYPE: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]]] = {
    "postgres": _database("postgres"),
    "mysql": _database("mysql"),
    "bigquery": _bigquery,
    "jira": _jira,
    "salesforce": _salesforce,
}


# --- fields ---------------------------------------------------------------------------------------


def _object(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise ValidationFailed(f"{name} must be an object", field=name)
    return value


def _text(fields: Mapping[str, Any], name: str, place: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise ValidationFailed(f"{name} must be text that is not empty", field=place)
    return value


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, True)
    if not isinstance(value, bool):
        raise ValidationFailed(f"{name} must be true or false", field=f"jira.{name}")
    return value


def _known(fields: Mapping[str, Any], names: set[str] | frozenset[str], place: str) -> None:
    for name in fields:
        if name not in names:
            there = ", ".join(sorted(names))
            raise ValidationFailed(
                f"{place}{name[:64]} is none of {there}", field=f"{place}{name[:64]}"
            )
