"""Databases by their URLs: Iceberg tables, and the kinds that packages add, among them.

    iceberg://glue/PREFIX?warehouse=s3://bucket/folder&region=eu-central-1
    iceberg://rest/PREFIX?uri=https://…&warehouse=NAME&signing=glue
    iceberg://s3tables/PREFIX?warehouse=arn:…

PREFIX is what the names of the catalogue's databases begin with: that of a stack's lake to read it,
another one for tables of one's own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from lakesync.adapters.connect import database_adapter
from lakesync.adapters.database_types import DatabasePlace, added_kinds, opened_by_type
from lakesync.adapters.network import ANYWHERE
from lakesync.errors import AdapterRefused, ValidationFailed
from lakesync.installing import how_to_install
from lakesync.materialise.lake_catalogue import LakeCatalogue, LakePlace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog

    from lakesync.adapters.connect import OpenedAdapter
    from lakesync.adapters.database import DestinationDatabase
    from lakesync.materialise.iceberg_database import IcebergDatabase

    OpenedDatabase = OpenedAdapter | IcebergDatabase | DestinationDatabase

SCHEME: Final = "iceberg://"
_FORM: Final = (
    "iceberg://glue/prefix?warehouse=s3://bucket/folder&region=eu-central-1, "
    "iceberg://rest/prefix?uri=https://…&warehouse=name or "
    "iceberg://s3tables/prefix?warehouse=arn:…"
)
_PREFIX: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?")
_WAREHOUSE: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/[A-Za-z0-9_.=-]+)*")
_OPTIONS: Final = frozenset({"uri", "warehouse", "signing", "region", "endpoint"})


def opened_database(
    url: str,
    keeper: str,
    credentials: Mapping[str, Any] | None = None,
    *,
    history_ms: int | None = None,
    hosts: tuple[str, ...] = ANYWHERE,
) -> OpenedDatabase:
    """Return a gateway's database at a URL of any kind; nothing is connected yet.

    Args:
        keeper: whose: a gateway, or ``GATEWAY/FLOW``.
        credentials: for BigQuery, what a REST catalogue asks for, or what a package's kind takes;
            None for what is there here.
        history_ms: how old history may be that is kept; None keeps all.
        hosts: which hosts that are not public it may be at, for a service whose users name
            databases; see `lakesync.adapters.network`.

    Raises:
        ValidationFailed: the URL is none of a database that is known; it is not repeated.
        AdapterRefused: its driver is not installed, the package that adds its kind cannot be
            imported, or the credentials are none.
    """
    scheme = url.partition("://")[0]
    if scheme in added_kinds():
        place = DatabasePlace(url, keeper, credentials, history_ms, hosts)
        return opened_by_type(scheme, place)
    if not url.startswith(SCHEME):
        return database_adapter(url, keeper, credentials, history_ms=history_ms, hosts=hosts)
    lake = lake_place(url, credentials or {})
    try:
        from lakesync.materialise.iceberg_database import (  # noqa: PLC0415 - a cold start
            IcebergDatabase,
        )
    except ImportError as exc:
        raise AdapterRefused(f"install PyIceberg: {how_to_install('analysis')}") from exc
    return IcebergDatabase(lake, keeper, history_ms=history_ms)


def lake_place(url: str, secret: Mapping[str, Any]) -> LakePlace:
    """Return the catalogue at a URL, and where in it.

    Args:
        secret: what a REST catalogue asks for, in PyIceberg's names.

    Raises:
        ValidationFailed: the URL names none; all that is wrong with it is said at once.
    """
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError as exc:
        raise _no_catalogue() from exc
    prefix, said = parts.path.strip("/"), {name: one[0] for name, one in options.items()}
    endpoint, warehouse = said.get("endpoint", ""), said.get("warehouse", "")
    is_glue = parts.netloc == "glue"
    if said.keys() - _OPTIONS or not _PREFIX.fullmatch(prefix):
        raise _no_catalogue()
    if (endpoint and not _ENDPOINT.fullmatch(endpoint)) or (
        is_glue and not _WAREHOUSE.fullmatch(warehouse)
    ):
        raise _no_catalogue()
    described = LakeCatalogue(
        parts.netloc, said.get("uri", ""), warehouse, signing=said.get("signing", "")
    )
    LakeCatalogue.from_json(described.as_json())  # every fault of it is said
    texts = {name: str(one) for name, one in secret.items()}
    settings = described.python_settings(said.get("region"), endpoint or None, texts)

    def open_catalogue() -> Catalog:
        try:
            from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - a cold start
        except ImportError as exc:
            raise AdapterRefused(f"install PyIceberg: {how_to_install('analysis')}") from exc
        from lakesync.materialise.iceberg_table import FILE_IO  # noqa: PLC0415 - a cold start

        return load_catalog("lake", **settings | {"py-io-impl": FILE_IO})

    return LakePlace(open_catalogue, prefix, warehouse if is_glue else "")


def _no_catalogue() -> ValidationFailed:
    return ValidationFailed(f"the URL of Iceberg tables is {_FORM}", field="url")


if TYPE_CHECKING:

    def _is_one(database: OpenedDatabase) -> DestinationDatabase:
        return database
