"""Databases of dlt at URLs of SQLAlchemy: what the operator allows of them.

Rules of this module
    1. PostgreSQL and MySQL are connected to as everywhere: read-only, at the address that was
       looked at.
    2. Every other driver connects by itself, so its host is an IP address, or one that the operator
       names in DatabaseHosts: a name that anybody else owns may lead elsewhere a moment later.
    3. A URL says where to connect by its host alone. Parameters are refused except harmless ones,
       and so is a driver that does not use the host: it reads files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from lakesync.adapters.network import addresses_of, is_ip, is_named
from lakesync.errors import AdapterRefused, ValidationFailed

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Engine

_OURS: Final = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
_PARAMETERS: Final = frozenset({"charset", "service_name"})
_PLAIN: Final = re.compile(r"[^;{}\x00-\x1f]*")
"""Text that adds nothing to a driver's own list of settings."""
_FIELD: Final = "configuration.sqlDatabase.url"


def url_of(text: str) -> URL:
    """Return a URL, if it may be one of a database.

    Raises:
        ValidationFailed: it may not; the error repeats no part of it but its parameters' names.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as exc:
        raise ValidationFailed(
            "this is no URL of SQLAlchemy: dialect+driver://user:password@host:port/database",
            field=_FIELD,
        ) from exc
    extra = sorted(url.query.keys() - _PARAMETERS)
    if extra:
        raise ValidationFailed(f"leave out of the URL: {', '.join(extra)}", field=_FIELD)
    texts = [url.username, url.password, url.database, *map(str, url.query.values())]
    if not url.host or not all(_PLAIN.fullmatch(str(text or "")) for text in texts):
        raise ValidationFailed(
            "the URL names a host; and user, password and database have none of ; { }",
            field=_FIELD,
        )
    return url


def kind_of(url: URL) -> str:
    """Return what of our own databases it is: postgresql, mysql, or none."""
    return _OURS.get(url.get_backend_name(), "")


def engine_at(url: URL, hosts: tuple[str, ...]) -> Engine:
    """Return the engine of any other database.

    Args:
        url: of `url_of`.
        hosts: the operator's entries.

    Raises:
        AdapterRefused: its host is not one that the operator allows.
        ValidationFailed: this deployment has no such driver.
    """
    host = str(url.host)
    if not (is_ip(host) or is_named(host, hosts)):
        raise AdapterRefused(
            f"{host} is not named in DatabaseHosts, as the host of any database must be that is "
            "neither PostgreSQL nor MySQL: ask the operator of this stack for it"
        )
    addresses_of(host, url.port or 1, hosts)
    try:
        engine = create_engine(url, poolclass=NullPool)
    except (NoSuchModuleError, ModuleNotFoundError) as exc:
        raise ValidationFailed(
            f"this deployment has no driver for {url.drivername}: put it into the layer of "
            "ConnectorLayer",
            field=_FIELD,
        ) from exc
    except (ArgumentError, TypeError) as exc:
        raise _reads_files(url) from exc
    places, named = engine.dialect.create_connect_args(url)
    if not any(host in str(place) for place in (*places, *named.values())):
        raise _reads_files(url)
    return engine


def _reads_files(url: URL) -> ValidationFailed:
    return ValidationFailed(f"{url.drivername} connects to no host", field=_FIELD)
