"""Databases by their URLs. A system is imported when a database needs it."""

from __future__ import annotations

import json
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import parse_qs, urlsplit

from lakesync.adapters.database_types import (
    DatabasePlace,
    DatabaseType,
    added_kinds,
    loaded,
    opened_by_type,
)
from lakesync.adapters.network import ANYWHERE
from lakesync.errors import AdapterRefused, ValidationFailed
from lakesync.installing import how_to_install

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from typing import Protocol, Self

    from lakesync.adapters.database import DestinationDatabase
    from lakesync.adapters.history_archive import HistoryArchive
    from lakesync.adapters.lake.s3_adapter import S3Adapter

    class OpenedAdapter(DestinationDatabase, AbstractContextManager[Any], Protocol):
        """A database of this package; a context manager closes it."""

        def __enter__(self) -> Self: ...


BUILT_IN: Final[Mapping[str, str]] = {
    "bigquery": "lakesync.systems.bigquery.bigquery_database:BIGQUERY",
    "iceberg": "lakesync.systems.iceberg.iceberg_database:ICEBERG",
    "mysql": "lakesync.systems.mysql.mysql_dialect:MYSQL",
    "postgres": "lakesync.systems.postgres.postgres_dialect:POSTGRES",
    "s3": "lakesync.systems.objects:OBJECTS",
}
"""The kinds of databases of this package, each with its `DatabaseType`."""
_ALIASES: Final[Mapping[str, str]] = {"postgresql": "postgres", "mariadb": "mysql"}
_EXTRAS: Final[Mapping[str, str]] = {"iceberg": "analysis", "s3": "analysis"}
"""What is installed for a kind, unless it is called as the kind is."""
_FORMS = (
    "postgresql://user:password@host:5432/database, mysql://user:password@host:3306/database or "
    "mariadb://…, with ?tls=verify, encrypt or off, and &ca=/path/to/certificates.pem, or "
    "bigquery://project/dataset?location=EU, with &endpoint=https://… for another endpoint, or "
    "s3://bucket/folder?region=eu-central-1, with &endpoint=https://… and &style=path for another "
    "store, or iceberg://glue/prefix?warehouse=s3://bucket/folder"
)
ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_FOLDER = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*(/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)*")
_STYLES = ("", "path")


class Connection(NamedTuple):
    """A database as a secret describes it."""

    url: str
    credentials: Mapping[str, Any] | None = None
    """Credentials for Google or a catalogue; None for the environment's default credentials."""

    @property
    def kind(self) -> str:
        """The kind of declared destination that it can be; empty for none."""
        kind = _kind_at(self.url)
        return kind if kind in BUILT_IN or kind in added_kinds() else ""


def read_connection(text: str) -> Connection:
    """Read the value of a secret: a URL, or an object with the URL and the credentials.

    Raises:
        ValidationFailed: it is neither; the error repeats no part of it.
    """
    text = text.strip()
    if not text.startswith("{"):
        return Connection(text)
    try:
        body = json.loads(text)
        url, credentials = body.pop("url"), body.pop("credentials", None)
    except (ValueError, KeyError) as exc:
        raise _no_connection() from exc
    if body or not isinstance(url, str) or not isinstance(credentials, dict | None):
        raise _no_connection()
    if credentials is not None and not _takes_credentials(url):
        raise _no_connection()
    return Connection(url, credentials)


def _takes_credentials(url: str) -> bool:
    own = url.startswith(("bigquery://", "iceberg://rest/"))
    return own or url.partition("://")[0] in added_kinds()


def _no_connection() -> ValidationFailed:
    return ValidationFailed(
        "the secret is a database's URL, or for BigQuery and Iceberg's REST catalogues {\"url\": "
        '"bigquery://project/dataset", "credentials": {…}}',
        field="secret",
    )


def database_adapter(
    url: str,
    gateway: str,
    credentials: Mapping[str, Any] | None = None,
    *,
    history_ms: int | None = None,
    hosts: tuple[str, ...] = ANYWHERE,
) -> OpenedAdapter:
    """Return the adapter of a gateway in the database at a URL; nothing is connected yet.

    It closes itself as a context manager; of a kind that a package adds, only if that does so too.

    Args:
        gateway: the gateway's id, or ``GATEWAY/FLOW``.
        credentials: for BigQuery, as `google_credentials` takes them, what a REST catalogue asks
            for, or what a package's kind takes; None for the default ones.
        history_ms: how long history is kept; None keeps all, except in objects, which keep that of
            their last writes.
        hosts: which hosts that are not public it may be at, for a service whose users name
            databases; see `lakesync.adapters.network`.

    Raises:
        ValidationFailed: the URL is not that of a known database; it is not repeated.
        AdapterRefused: the driver is not installed, the package that adds the kind cannot be
            imported, or the credentials are invalid.
    """
    kind = _kind_at(url)
    place = DatabasePlace(url, gateway, credentials, history_ms, hosts)
    if kind in added_kinds():
        opened = opened_by_type(kind, place)
    elif kind in BUILT_IN:
        try:
            opened = loaded("", BUILT_IN, kind, DatabaseType, "database").open(place)
        except ImportError as exc:
            raise _not_installed(kind) from exc
    else:
        raise not_a_url()
    return cast("OpenedAdapter", opened)


def _kind_at(url: str) -> str:
    scheme = url.partition("://")[0]
    return _ALIASES.get(scheme, scheme)


def not_a_url() -> ValidationFailed:
    """Return the error of a URL that is of no database; it is not repeated."""
    return ValidationFailed(f"a database's URL is {_FORMS}", field="url")


def _not_installed(kind: str) -> AdapterRefused:
    extra = _EXTRAS.get(kind, kind)
    return AdapterRefused(f"install the driver: {how_to_install(extra)}")


def history_archive(url: str, keeper: str, hosts: tuple[str, ...] = ()) -> HistoryArchive:
    """Return the archive at a URL; nothing is connected yet.

    Args:
        url: the address of a bucket's folder, or of a database of PostgreSQL.
        hosts: as for `database_adapter`.

    Raises:
        ValidationFailed: the URL is of neither; it is not repeated.
        AdapterRefused: the driver is not installed.
    """
    from lakesync.adapters.history_archive import HistoryArchive  # noqa: PLC0415

    kind = _kind_at(url)
    if kind == "s3":
        return HistoryArchive(*bucket_at(url), keeper)
    if kind != "postgres":
        sentence = "an archive is at s3://bucket/folder?region=… or postgresql://…"
        raise ValidationFailed(sentence, field="url")
    try:
        postgres = import_module("lakesync.systems.postgres.postgres_dialect")
    except ImportError as exc:
        raise _not_installed(kind) from exc
    return HistoryArchive(postgres.PostgresObjects(postgres.dialect_at(url, hosts)), "", keeper)


def bucket_at(url: str) -> tuple[S3Adapter, str]:
    """Return the bucket at a URL, and the prefix of the folder's keys.

    Raises:
        ValidationFailed: the URL is of no bucket's folder.
    """
    from lakesync.adapters.lake.s3_adapter import s3_adapter  # noqa: PLC0415 - its driver

    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError as exc:
        raise not_a_url() from exc
    folder = parts.path.strip("/")
    endpoint, region, style = (options.get(one, [""])[0] for one in ("endpoint", "region", "style"))
    named = _BUCKET.fullmatch(parts.netloc) and (not folder or _FOLDER.fullmatch(folder))
    known = not options.keys() - {"endpoint", "region", "style"} and style in _STYLES
    if not named or not known or (endpoint and not ENDPOINT.fullmatch(endpoint)):
        raise not_a_url()
    objects = s3_adapter(
        parts.netloc, endpoint=endpoint or None, region=region or None, path_style=style == "path"
    )
    return objects, f"{folder}/" if folder else ""
