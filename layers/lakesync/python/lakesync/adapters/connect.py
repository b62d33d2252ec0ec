"""Databases by their URLs. Drivers are imported when one of theirs is asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from lakesync.errors import AdapterRefused, ValidationFailed

if TYPE_CHECKING:
    from lakesync.adapters.bigquery import BigQueryAdapter
    from lakesync.adapters.sql.adapter import SqlAdapter

    OpenedAdapter = SqlAdapter | BigQueryAdapter

_FORMS = (
    "postgresql://user:password@host:5432/database, mysql://user:password@host:3306/database or "
    "mariadb://…, with ?ca=/path/to/certificates.pem for TLS, or "
    "bigquery://project/dataset?location=EU"
)
_PROJECT = re.compile(r"[a-z][a-z0-9-]{2,62}")
_DATASET = re.compile(r"[A-Za-z0-9_]{1,1024}")
_EXTRAS = {"mysql": "mysql", "mariadb": "mysql", "bigquery": "bigquery"}


def database_adapter(url: str, gateway: str) -> OpenedAdapter:
    """Give the adapter of a gateway in the database at a URL; nothing is connected yet.

    Raises:
        ValidationFailed: the URL is none of a database that is known; it is not repeated.
        AdapterRefused: its driver is not installed.
    """
    scheme = url.partition("://")[0]
    try:
        if scheme in {"postgres", "postgresql"}:
            from lakesync.adapters.postgres import postgres_adapter  # noqa: PLC0415 - its driver

            return postgres_adapter(url, gateway)
        if scheme in {"mysql", "mariadb"}:
            return _mysql(url, gateway, is_mariadb=scheme == "mariadb")
        if scheme == "bigquery":
            return _bigquery(url, gateway)
    except ImportError as exc:
        extra = _EXTRAS.get(scheme, "postgres")
        raise AdapterRefused(f"install the driver: pip install 'lakesync[{extra}]'") from exc
    raise ValidationFailed(f"a database's URL is {_FORMS}", field="url")


def _mysql(url: str, gateway: str, *, is_mariadb: bool) -> SqlAdapter:
    from lakesync.adapters.mysql import MySql, mysql_adapter  # noqa: PLC0415 - its driver

    try:
        parts = urlsplit(url)
        port = parts.port or 3306
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError as exc:
        raise ValidationFailed(f"a database's URL is {_FORMS}", field="url") from exc
    database = unquote(parts.path.lstrip("/"))
    if not parts.hostname or not parts.username or not database or options.keys() - {"ca"}:
        raise ValidationFailed(f"a database's URL is {_FORMS}", field="url")
    tls = {"ca": options["ca"][0]} if options else None
    dialect = MySql(
        parts.hostname,
        unquote(parts.username),
        unquote(parts.password or ""),
        database,
        port,
        is_mariadb=is_mariadb,
        tls=tls,
    )
    return mysql_adapter(dialect, gateway)


def _bigquery(url: str, gateway: str) -> BigQueryAdapter:
    from lakesync.adapters.bigquery import BigQueryAdapter, Jobs  # noqa: PLC0415 - its driver

    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError as exc:
        raise ValidationFailed(f"a database's URL is {_FORMS}", field="url") from exc
    dataset = parts.path.strip("/")
    named = _PROJECT.fullmatch(parts.netloc) and _DATASET.fullmatch(dataset)
    if not named or options.keys() - {"location"}:
        raise ValidationFailed(f"a database's URL is {_FORMS}", field="url")
    location = options.get("location", [""])[0]
    return BigQueryAdapter(Jobs(parts.netloc, dataset, location), gateway)
