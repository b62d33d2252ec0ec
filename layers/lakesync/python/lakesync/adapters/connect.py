"""Databases by their URLs. A driver is imported when a database needs it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from lakesync.adapters.database_types import added_kinds
from lakesync.adapters.network import ANYWHERE, context_of, read_tls
from lakesync.errors import AdapterRefused, ValidationFailed
from lakesync.installing import how_to_install

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.adapters.bigquery import BigQueryAdapter
    from lakesync.adapters.bigquery_jobs import Jobs
    from lakesync.adapters.history_archive import HistoryArchive
    from lakesync.adapters.lake.s3_adapter import S3Adapter
    from lakesync.adapters.mysql import MySql
    from lakesync.adapters.objects import ObjectsDatabase
    from lakesync.adapters.postgres import Postgres
    from lakesync.adapters.sql.adapter import SqlAdapter

    OpenedAdapter = SqlAdapter | BigQueryAdapter | ObjectsDatabase

_FORMS = (
    "postgresql://user:password@host:5432/database, mysql://user:password@host:3306/database or "
    "mariadb://…, with ?tls=verify, encrypt or off, and &ca=/path/to/certificates.pem, or "
    "bigquery://project/dataset?location=EU, with &endpoint=https://… for another endpoint, or "
    "s3://bucket/folder?region=eu-central-1, with &endpoint=https://… and &style=path for another "
    "store, or iceberg://glue/prefix?warehouse=s3://bucket/folder"
)
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?")
_PROJECT = re.compile(r"[a-z][a-z0-9-]{2,62}")
_DATASET = re.compile(r"[A-Za-z0-9_]{1,1024}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_FOLDER = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*(/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)*")
_STYLES = ("", "path")
_EXTRAS = {"mysql": "mysql", "mariadb": "mysql", "bigquery": "bigquery"}
_KINDS: Final[Mapping[str, str]] = {
    "postgres": "postgres",
    "postgresql": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
    "bigquery": "bigquery",
    "s3": "s3",
    "iceberg": "iceberg",
}


class Connection(NamedTuple):
    """A database as a secret describes it."""

    url: str
    credentials: Mapping[str, Any] | None = None
    """Credentials for Google or a catalogue; None for the environment's default credentials."""

    @property
    def kind(self) -> str:
        """The kind of declared destination that it can be; empty for none."""
        scheme = self.url.partition("://")[0]
        return _KINDS.get(scheme) or (scheme if scheme in added_kinds() else "")


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

    Args:
        url: the database's address.
        gateway: the gateway's id.
        credentials: for BigQuery, as `google_credentials` takes them; None for the default ones.
        history_ms: how long history is kept; None keeps all, except in objects, which keep that of
            their last writes.
        hosts: which hosts that are not public it may be at, for a service whose users name
            databases; see `lakesync.adapters.network`.

    Raises:
        ValidationFailed: the URL is not that of a known database; it is not repeated.
        AdapterRefused: the driver is not installed, or the credentials are invalid.
    """
    scheme = url.partition("://")[0]
    try:
        if scheme in {"postgres", "postgresql"}:
            from lakesync.adapters.postgres import postgres_adapter  # noqa: PLC0415 - its driver

            return postgres_adapter(_postgres(url, hosts), gateway, history_ms=history_ms)
        if scheme in {"mysql", "mariadb"}:
            from lakesync.adapters.mysql import mysql_adapter  # noqa: PLC0415 - its driver

            dialect = _mysql(url, hosts, is_mariadb=scheme == "mariadb")
            return mysql_adapter(dialect, gateway, history_ms=history_ms)
        if scheme == "bigquery":
            from lakesync.adapters.bigquery import BigQueryAdapter  # noqa: PLC0415 - its driver

            return BigQueryAdapter(bigquery_jobs(url, credentials), gateway, history_ms=history_ms)
        if scheme == "s3":
            return _objects(url, gateway)
    except ImportError as exc:
        extra = _EXTRAS.get(scheme, "postgres")
        raise AdapterRefused(f"install the driver: {how_to_install(extra)}") from exc
    raise ValidationFailed(f"a database's URL is {_FORMS}", field="url")


def _postgres(url: str, hosts: tuple[str, ...]) -> Postgres:
    """Return the dialect; ``tls`` and ``ca`` are ours, the rest is for PostgreSQL's library."""
    from lakesync.adapters.postgres import Postgres  # noqa: PLC0415 - its driver

    address, _, query = url.partition("?")
    parts = [part for part in query.split("&") if part]
    own = parse_qs("&".join(part for part in parts if part.startswith("tls=")), True)
    tls = read_tls(own) or ("verify" if any(part.startswith("ca=") for part in parts) else "")
    rest = [part.replace("ca=", "sslrootcert=", 1) if part.startswith("ca=") else part
            for part in parts if not part.startswith("tls=")]  # fmt: skip
    return Postgres(f"{address}?{'&'.join(rest)}" if rest else address, hosts, tls)


def _mysql(url: str, hosts: tuple[str, ...], *, is_mariadb: bool) -> MySql:
    from lakesync.adapters.mysql import MySql  # noqa: PLC0415 - its driver

    try:
        parts = urlsplit(url)
        port = parts.port or 3306
        options = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as exc:
        raise ValidationFailed(f"a database's URL is {_FORMS}", field="url") from exc
    database = unquote(parts.path.lstrip("/"))
    if not parts.hostname or not parts.username or not database or options.keys() - {"ca", "tls"}:
        raise ValidationFailed(f"a database's URL is {_FORMS}", field="url")
    ca = options["ca"][0] if "ca" in options else None
    mode = read_tls(options) or ("verify" if ca else "")
    return MySql(
        parts.hostname,
        unquote(parts.username),
        unquote(parts.password or ""),
        database,
        port,
        is_mariadb=is_mariadb,
        tls=context_of(mode, ca) if mode else None,
        hosts=hosts,
    )


def bigquery_jobs(url: str, credentials: Mapping[str, Any] | None = None) -> Jobs:
    """Return the dataset at a URL; see `database_adapter`."""
    from lakesync.adapters.bigquery_jobs import Jobs  # noqa: PLC0415 - its driver

    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError as exc:
        raise ValidationFailed(f"a database's URL is {_FORMS}", field="url") from exc
    dataset = parts.path.strip("/")
    named = _PROJECT.fullmatch(parts.netloc) and _DATASET.fullmatch(dataset)
    endpoint = options.get("endpoint", [""])[0]
    known = not options.keys() - {"location", "endpoint"}
    if not named or not known or (endpoint and not _ENDPOINT.fullmatch(endpoint)):
        raise ValidationFailed(f"a database's URL is {_FORMS}", field="url")
    location = options.get("location", [""])[0]
    return Jobs(parts.netloc, dataset, location, endpoint=endpoint, credentials=credentials)


def history_archive(url: str, keeper: str, hosts: tuple[str, ...] = ()) -> HistoryArchive:
    """Return the archive at a URL; nothing is connected yet.

    Args:
        url: the address of a bucket's folder, or of a database of PostgreSQL.
        keeper: the gateway whose history it is.
        hosts: as for `database_adapter`.

    Raises:
        ValidationFailed: the URL is of neither; it is not repeated.
        AdapterRefused: the driver is not installed.
    """
    from lakesync.adapters.history_archive import HistoryArchive  # noqa: PLC0415

    if url.startswith(("postgres://", "postgresql://")):
        try:
            from lakesync.adapters.postgres import PostgresObjects  # noqa: PLC0415 - its driver
        except ImportError as exc:
            raise AdapterRefused(f"install the driver: {how_to_install('postgres')}") from exc
        return HistoryArchive(PostgresObjects(_postgres(url, hosts)), "", keeper)
    if not url.startswith("s3://"):
        sentence = "an archive is at s3://bucket/folder?region=… or postgresql://…"
        raise ValidationFailed(sentence, field="url")
    return HistoryArchive(*_bucket(url), keeper)


def _objects(url: str, gateway: str) -> ObjectsDatabase:
    from lakesync.adapters.objects import ObjectsDatabase  # noqa: PLC0415

    return ObjectsDatabase(*_bucket(url), gateway)


def _bucket(url: str) -> tuple[S3Adapter, str]:
    """Return the bucket at a URL, and the prefix of the folder's keys."""
    from lakesync.adapters.lake.s3_adapter import s3_adapter  # noqa: PLC0415 - its driver

    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError as exc:
        raise ValidationFailed(f"a database's URL is {_FORMS}", field="url") from exc
    folder = parts.path.strip("/")
    endpoint, region, style = (options.get(one, [""])[0] for one in ("endpoint", "region", "style"))
    named = _BUCKET.fullmatch(parts.netloc) and (not folder or _FOLDER.fullmatch(folder))
    known = not options.keys() - {"endpoint", "region", "style"} and style in _STYLES
    if not named or not known or (endpoint and not _ENDPOINT.fullmatch(endpoint)):
        raise ValidationFailed(f"a database's URL is {_FORMS}", field="url")
    objects = s3_adapter(
        parts.netloc, endpoint=endpoint or None, region=region or None, path_style=style == "path"
    )
    return objects, f"{folder}/" if folder else ""
