"""The connector of a source of dlt, whose resources are made from its settings.

Rules of making resources
    1. Settings cannot name arbitrary code: a source is one of three of dlt's own, or an entry point
       of the group `GROUP` that was installed with the deployment.
    2. dlt's own sources are given their means: a session restricted to allowed hosts, a read-only
       connection, the listed files. None looks for credentials itself.

Law N9: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import time
from contextlib import suppress
from copy import deepcopy
from datetime import datetime
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import dlt
from dlt.common.configuration.exceptions import ConfigurationException
from dlt.common.exceptions import DictValidationException, MissingDependencyException
from dlt.extract import DltResource, DltSource
from dlt.extract.incremental.exceptions import (
    IncrementalCursorInvalidCoercion,
    IncrementalCursorPathHasValueNone,
    IncrementalCursorPathMissing,
    IncrementalPrimaryKeyMissing,
)
from requests import PreparedRequest, Response, Session, exceptions
from requests.adapters import BaseAdapter

from lakesync.connectors.http import DEFAULT_WAIT_S, Answer, Caller, refused
from lakesync.connectors.pages import identifier
from lakesync.connectors.port import Outside, SourceColumn, SourceTable, Storage, Unreadable
from lakesync.errors import (
    AdapterFailed,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    LakeSyncError,
    NotFound,
    ValidationFailed,
)
from lakesync.result import Err, Ok
from lakesync.systems.dlt.dlt_settings import revealed
from lakesync.systems.dlt.extraction import (
    MODIFIED,
    Extraction,
    Rows,
    column_type,
    pages_of,
    reading_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pydantic import SecretStr
    from sqlalchemy.engine import Engine

    from lakesync.connectors.port import SourcePage
    from lakesync.result import Result
    from lakesync.systems.dlt.dlt_settings import (
        DltSettings,
        DltTable,
        Filesystem,
        SqlDatabase,
        SqlUrl,
    )
    from lakesync.systems.dlt.extraction import Reading
    from lakesync.systems.sql.table_plan import Database

    Make = Callable[[str], DltResource]
    Translate = Callable[[Exception], LakeSyncError | None]

T = TypeVar("T")

_CHECK_S_MAX: Final = 8.0
"""After how long `DltConnector.check` asks no other table."""
_SAMPLE_ROWS: Final = 100
"""Rows from which column types are inferred if the source does not declare them."""


class DltConnector:
    """`lakesync.connectors.Connector` of dlt's sources."""

    def __init__(self, settings: DltSettings, storage: Storage, outside: Outside) -> None:
        self._tables = settings.read()
        self._storage = storage
        self._source = Source(settings, outside)

    def check(self) -> Result[str, LakeSyncError]:
        def work() -> str:
            ends = time.monotonic() + _CHECK_S_MAX
            for table in self._tables.values():
                reading = self._reading(table)
                if time.monotonic() < ends:
                    self._verified(reading, table)
            return f"{self._source.title} answers, and has {', '.join(self._tables)}."

        return self._run(work)

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        """Return the tables that are read; undeclared types are inferred from the first rows."""
        return self._run(lambda: tuple(map(self._described, self._tables.values())))

    def read(
        self,
        table: str,
        cursor: str,
        *,
        rows_max: int,
        poll_ms: int,  # noqa: ARG002 - what has no time has the poll's, by its page
    ) -> Result[SourcePage, LakeSyncError]:
        def work() -> SourcePage:
            if table not in self._tables:
                raise ValidationFailed(f"this connector does not poll {table}", field="table")
            reading = self._reading(self._tables[table])
            extraction = Extraction(reading, Rows(reading), self._storage, table)
            return extraction.page(cursor, rows_max)

        return self._run(work)

    def close(self) -> None:
        self._source.close()

    def _reading(self, table: DltTable) -> Reading:
        return reading_of(self._source.resource(table), table)

    def _sample(self, reading: Reading) -> list[Any]:
        pages = pages_of(reading.resource, {})
        try:
            return next((rows[:_SAMPLE_ROWS] for rows in pages if rows), [])
        finally:
            pages.close()

    def _verified(self, reading: Reading, table: DltTable) -> None:
        sample = self._sample(reading)
        change = Rows(reading).change(sample[0]) if sample else None
        if isinstance(change, Unreadable):
            raise AdapterRefused(f"{table.name}: {change.reason}")

    def _described(self, table: DltTable) -> SourceTable:
        reading = self._reading(table)
        values: dict[str, object] = {}
        for row in self._sample(reading):
            for name, value in (row if isinstance(row, dict) else vars(row)).items():
                if values.get(name) is None:
                    values[name] = value
        values.pop(MODIFIED, None)
        columns = tuple(
            SourceColumn(
                identifier(name),
                column_type(reading.columns.get(name, {}), values.get(name)),
                nullable=name not in reading.key,
            )
            for name in dict.fromkeys((*reading.key, *reading.columns, *values))
        )
        return SourceTable(table.name, columns, tuple(map(identifier, reading.key)))

    def _run(self, work: Callable[[], T]) -> Result[T, LakeSyncError]:
        try:
            return Ok(work())
        except LakeSyncError as error:
            return Err(error)
        except Exception as exc:
            ours = translated(exc, self._source.translate)
            if ours is None and type(exc).__module__.startswith(("dlt.", "sqlalchemy.")):
                # Its text may contain rows.
                ours = AdapterFailed(f"the source failed: {type(exc).__name__}")
            if ours is None:
                raise
            return Err(ours)


# --- resources ------------------------------------------------------------------------------------


GROUP: Final = "lakesync.dlt_sources"
"""The group of entry points; each is called with the arguments, and returns dlt's source."""
_ROWS: Final = 1_000
"""Rows of a database that are read at once."""
_AUTH: Final = {
    "bearer": ("token",),
    "api_key": ("api_key",),
    "http_basic": ("username", "password"),
    "oauth2_client_credentials": ("access_token_url", "client_id", "client_secret"),
}
"""The settings that each authentication needs: dlt would look elsewhere for missing ones."""


class Source:
    """A connector's resources by name, created anew for each use.

    Attributes:
        title: the source's name for people.
        translate: translates its driver's errors.
    """

    def __init__(self, settings: DltSettings, outside: Outside) -> None:
        self._settings = settings
        self._outside = outside
        self.title = "The source"
        self.translate: Callable[[Exception], Any] | None = None
        self._sessions: dict[str, Session] = {}
        self._make = self._chosen()

    def resource(self, table: DltTable) -> DltResource:
        """Make a resource, with its hints from the settings.

        Raises:
            NotFound: there is none of that name.
        """
        resource = self._make(table.name)
        hints: dict[str, Any] = dict(table.hints or {})
        if "incremental" in hints:
            has_times = self._settings.sql_database is not None
            hints["incremental"] = _incremental(hints["incremental"], has_times=has_times)
        if hints:
            resource.apply_hints(**hints)
        return resource

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    def _session(self, url: str) -> Session:
        if url not in self._sessions:
            self._sessions[url] = session_for(url, self._outside)
        return self._sessions[url]

    def _chosen(self) -> Make:
        settings = self._settings
        if settings.rest is not None:
            self.title = "The API"
            return _rest(settings, self._session)
        if settings.sql_database is not None:
            self.title = "The database"
            make, self.translate = _sql(
                settings.sql_database, settings.secrets, self._outside.databases
            )
            return make
        if settings.filesystem is not None:
            self.title = "The folder"
            return _files(settings.filesystem, self._outside)
        return _installed(settings)


def _rest(settings: DltSettings, session: Callable[[str], Session]) -> Make:
    from dlt.sources.rest_api import rest_api_resources  # noqa: PLC0415 - of three, this one

    config = revealed(settings.rest, settings.secrets)
    client = config["client"]
    client["session"] = session(client["base_url"])
    defined = [each for each in config["resources"] if isinstance(each, dict)]
    for resource in (*defined, config.get("resource_defaults") or {}):
        if isinstance(resource.get("endpoint"), dict):
            _authenticated(resource["endpoint"], session)
    _authenticated(client, session)

    def make(name: str) -> DltResource:
        # dlt removes keys from the dictionaries that it is given.
        return _named(name, rest_api_resources(cast("Any", deepcopy(config))))

    return make


def _authenticated(place: dict[str, Any], session: Callable[[str], Session]) -> None:
    """Restrict token requests to allowed hosts; keep dlt from looking for tokens itself."""
    auth = place.get("auth")
    if auth is None:
        return
    kind = auth.get("type", "bearer")
    missing = [name for name in _AUTH[kind] if name not in auth]
    if missing:
        raise ValidationFailed(
            f"auth of type {kind} needs {', '.join(missing)}", field="configuration.rest"
        )
    if kind == "oauth2_client_credentials":
        auth["session"] = session(auth["access_token_url"])


def _sql(
    settings: SqlDatabase | SqlUrl, secrets: Mapping[str, SecretStr], hosts: tuple[str, ...]
) -> tuple[Make, Callable[[Exception], Any] | None]:
    from dlt.sources.sql_database import sql_table  # noqa: PLC0415 - of three, this one

    engine, translate = _engine(settings, secrets, hosts)

    def make(name: str) -> DltResource:
        return sql_table(
            engine(), name, settings.schema_, chunk_size=_ROWS, reflection_level="full",
            backend="sqlalchemy",
        )  # fmt: skip

    return make, translate


def _engine(
    settings: SqlDatabase | SqlUrl, secrets: Mapping[str, SecretStr], hosts: tuple[str, ...]
) -> tuple[Callable[[], Engine], Callable[[Exception], Any] | None]:
    """Return what makes a database's engine, and what translates its driver's errors."""
    from sqlalchemy import create_engine  # noqa: PLC0415 - of three, this one
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    from lakesync.systems.dlt.dlt_settings import SqlUrl  # noqa: PLC0415 - for this one
    from lakesync.systems.dlt.places import engine_at, kind_of, url_of  # noqa: PLC0415

    if isinstance(settings, SqlUrl):
        url = url_of(revealed(settings.url, secrets))
        kind = kind_of(url)
        if not kind:
            return lambda: engine_at(url, hosts), None
        parts = {"host": url.host, "port": url.port, "database": url.database, "user": url.username}
        password = url.password or ""
    else:
        kind = settings.kind
        parts = settings.model_dump(include={"host", "port", "database", "user"})
        password = revealed(settings.password, secrets)
    database = _database(kind, {**parts, "password": password, "tls": settings.tls}, hosts)
    driver = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}[kind]

    def engine() -> Engine:
        return create_engine(f"{driver}://", creator=database.connect, poolclass=NullPool)

    return engine, database.dialect.translate


def _database(kind: str, parts: Mapping[str, Any], hosts: tuple[str, ...]) -> Database:
    """Return one of our own databases, which a connector of it reads."""
    from lakesync.connectors.registry import configured, connector_type  # noqa: PLC0415 - of three

    given = {name: value for name, value in parts.items() if value is not None}
    given["tables"] = [{"name": "any"}]
    made = connector_type({"postgresql": "postgres"}.get(kind, kind))
    outside = Outside(databases=hosts)
    connector: Any = made.make(configured(made, given), Storage.scratch("", ""), outside)
    database: Database = connector.database
    return database


def _files(settings: Filesystem, outside: Outside) -> Make:
    from lakesync.systems.dlt.places import file_resource, system_of  # noqa: PLC0415 - of three

    system = system_of(settings.bucket_url, outside)
    files = {each.name: each for each in settings.files}
    return lambda name: file_resource(settings.bucket_url, system, files[name])


def _installed(settings: DltSettings) -> Make:
    name = settings.source
    entry = next(iter(entry_points(group=GROUP, name=str(name))), None)
    if entry is None:
        names = ", ".join(sorted(each.name for each in entry_points(group=GROUP))) or "none"
        raise ValidationFailed(
            f"there is no source {name} in this deployment; there are: {names}",
            field="configuration.source",
        )
    source = entry.load()
    arguments = revealed(settings.arguments, settings.secrets)

    def make(table: str) -> DltResource:
        try:
            made = source(**arguments)
        except TypeError as exc:
            raise ValidationFailed(
                f"{name} does not take these arguments: {exc}", field="configuration.arguments"
            ) from exc
        if isinstance(made, DltSource):
            return _named(table, made.resources.values())
        return _named(table, [made] if isinstance(made, DltResource) else made)

    return make


def _named(name: str, resources: Iterable[DltResource]) -> DltResource:
    named = {resource.name: resource for resource in resources}
    if name not in named:
        raise NotFound(f"there is no resource {name}; there are {', '.join(named)}")
    return named[name]


def _incremental(given: Mapping[str, Any], *, has_times: bool) -> Any:
    """Return dlt's incremental; a database's times are compared as times, not as text."""
    first = given.get("initial_value")
    if has_times and isinstance(first, str):
        with suppress(ValueError):
            given = {**given, "initial_value": datetime.fromisoformat(first)}
    return dlt.sources.incremental(**given)


# --- requests -------------------------------------------------------------------------------------


_LEADS_ELSEWHERE = range(300, 400)
_NOT_SENT = frozenset({"host", "content-length", "connection", "user-agent"})
"""Headers that the caller decides."""


class _Adapter(BaseAdapter):
    """Sends requests to one origin."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self._caller = caller

    def send(self, request: PreparedRequest, *_: Any, **__: Any) -> Response:
        """Send a request; returns the answer whatever its status, unless it is a redirect."""
        headers = {
            name: value if isinstance(value, str) else value.decode()
            for name, value in request.headers.items()
            if name.lower() not in _NOT_SENT
        }
        body = request.body.encode() if isinstance(request.body, str) else request.body
        answer = self._caller.ask(
            request.method or "GET", request.url or "", body=body, headers=headers
        )
        if answer.status in _LEADS_ELSEWHERE:
            error = refused(answer, urlsplit(self._caller.base).hostname or "")
            if error is not None:
                raise error
        response = Response()
        response.status_code = answer.status
        response.headers.update(answer.headers)
        response.url = request.url or ""
        response.request = request
        response.encoding = "utf-8"
        response._content = answer.body  # noqa: SLF001 - as adapters fill it
        return response

    def close(self) -> None:
        self._caller.close()


class _Session(Session):
    """A session that is not copied: dlt copies its configuration."""

    def __deepcopy__(self, _: object) -> _Session:
        return self


def session_for(url: str, outside: Outside) -> Session:
    """Return a caller that sends requests only to the origin of a URL.

    Raises:
        ValidationFailed: the operator does not allow it.
    """
    parts = urlsplit(url)
    adapter = _Adapter(Caller(f"{parts.scheme}://{parts.netloc}", outside, {}))
    session = _Session()
    session.trust_env = False
    session.adapters.clear()
    for scheme in ("https://", "http://"):
        session.mount(scheme, adapter)
    return session


# --- errors ---------------------------------------------------------------------------------------


def translated(raised: BaseException, translate: Translate | None = None) -> LakeSyncError | None:
    """Return the error that was raised, or that caused it; None for what nobody expects.

    Args:
        translate: reads those of a database's driver.
    """
    for error in _causes(raised):
        if isinstance(error, LakeSyncError):
            return error
        ours = _of_requests(error) or _of_dlt(error)
        driver = getattr(error, "orig", None)  # as SQLAlchemy wraps it
        if ours is None and translate is not None and isinstance(driver, Exception):
            ours = translate(driver)
        if ours is not None:
            return ours
    return None


def _causes(raised: BaseException) -> Iterator[BaseException]:
    chain: list[BaseException] = []
    error: BaseException | None = raised
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    yield from reversed(chain)


def _of_requests(error: BaseException) -> LakeSyncError | None:
    if isinstance(error, exceptions.JSONDecodeError):
        return AdapterFailed(
            "the source's answer was cut off or is not JSON", retry_after_s=DEFAULT_WAIT_S
        )
    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        return _of_answer(error.response)
    if isinstance(error, exceptions.Timeout):
        return AdapterTimedOut("the source gave no answer in time", retry_after_s=DEFAULT_WAIT_S)
    if isinstance(error, exceptions.ConnectionError):
        return AdapterUnreachable("the source was not reached", retry_after_s=DEFAULT_WAIT_S)
    return None


def _of_answer(response: Response) -> LakeSyncError | None:
    headers = {name.lower(): value for name, value in response.headers.items()}
    answer = Answer(response.status_code, headers, response.content)
    return refused(answer, urlsplit(response.url or "").hostname or "the source")


def _of_dlt(error: BaseException) -> LakeSyncError | None:
    match error:
        case IncrementalCursorPathMissing() | IncrementalCursorPathHasValueNone():
            return AdapterRefused(
                f"a row of {error.pipe_name} has no {error.json_path}, by which incremental reads "
                "it: set on_cursor_value_missing, or name another cursor_path"
            )
        case IncrementalCursorInvalidCoercion():
            return AdapterRefused(
                "a row's cursor cannot be compared with the previous one, or with initial_value: "
                "they are of two types"
            )
        case IncrementalPrimaryKeyMissing():
            return AdapterRefused("a row lacks what primary_key names")
        case DictValidationException():
            return ValidationFailed(
                f"rest: {error.field or ''} at {error.path}: {error.msg}"[:300], field="rest"
            )
        case ConfigurationException() | MissingDependencyException():
            return ValidationFailed(f"{type(error).__name__}: {error}"[:300], field="configuration")
    return None
