"""dlt's resources, made from a connector's settings.

Rules of this module
    1. Settings cannot name arbitrary code: a source is one of three of dlt's own, or an entry point
       of the group `GROUP` that was installed with the deployment.
    2. dlt's own sources are given their means: a session restricted to allowed hosts, a read-only
       connection, the listed files. None looks for credentials itself.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from datetime import datetime
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, cast

import dlt
from dlt.extract import DltResource, DltSource

from lakesync.connectors.dlt.asking import session_for
from lakesync.connectors.dlt.references import revealed
from lakesync.errors import NotFound, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pydantic import SecretStr
    from requests import Session
    from sqlalchemy.engine import Engine

    from lakesync.connectors.dlt.configuration import (
        DltSettings,
        DltTable,
        Filesystem,
        SqlDatabase,
        SqlUrl,
    )
    from lakesync.connectors.outside import Outside
    from lakesync.connectors.sql.catalogue import Database

    Make = Callable[[str], DltResource]

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
        """Close connections. Safe to repeat."""
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

    from lakesync.connectors.dlt.configuration import SqlUrl  # noqa: PLC0415 - for this one
    from lakesync.connectors.dlt.urls import engine_at, kind_of, url_of  # noqa: PLC0415

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
    from lakesync.connectors.registry import configured  # noqa: PLC0415 - of three, this one
    from lakesync.connectors.sql import catalogue, types  # noqa: PLC0415 - drivers

    given = {name: value for name, value in parts.items() if value is not None}
    given["tables"] = [{"name": "any"}]
    if kind == "postgresql":
        return catalogue.PostgresSource(cast("Any", configured(types.POSTGRES, given)), hosts)
    return catalogue.MySqlSource(cast("Any", configured(types.MYSQL, given)), hosts)


def _files(settings: Filesystem, outside: Outside) -> Make:
    from lakesync.connectors.dlt.files import file_resource, system_of  # noqa: PLC0415 - of three

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
