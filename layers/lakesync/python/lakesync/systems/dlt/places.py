"""Where dlt's sources may read: folders and databases that the operator lists.

S3 is read by the stack's own role. The operator lists ``s3://bucket/folder`` or ``file:///folder``
(a mounted file system) in full among `Outside.hosts`; a ``*`` there allows neither.
"""

from __future__ import annotations

import csv
import io
import re
from codecs import BOM_UTF8
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import dlt
from dlt.common.json import json
from dlt.sources.filesystem import filesystem
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from lakesync.adapters.network import addresses_of, is_ip, is_named
from lakesync.errors import AdapterRefused, ValidationFailed
from lakesync.systems.dlt.extraction import MODIFIED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dlt.common.storages.fsspec_filesystem import FileItemDict
    from dlt.extract import DltResource
    from sqlalchemy.engine import URL, Engine

    from lakesync.connectors.port import Outside
    from lakesync.systems.dlt.dlt_settings import Files

_ROWS: Final = 1_000
"""Rows that are read at once."""


class _S3File(AbstractBufferedFile):  # type: ignore[misc]  # it has no types
    """An object of S3, read in ranges."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        bucket, _, key = self.path.partition("/")
        answer = self.fs.client.get_object(
            Bucket=bucket, Key=key, Range=f"bytes={start}-{max(end - 1, start)}"
        )
        body: bytes = answer["Body"].read()
        return body


class S3Files(AbstractFileSystem):  # type: ignore[misc]  # it has no types
    """Buckets by the stack's own client, to read."""

    protocol = "s3"
    cachable = False

    def __init__(self, client: Any) -> None:
        super().__init__()
        self.client = client

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:  # noqa: FBT001, FBT002
        bucket, _, folder = self._strip_protocol(path).partition("/")
        prefix = f"{folder.rstrip('/')}/" if folder else ""
        entries: list[dict[str, Any]] = []
        pages = self.client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=bucket, Prefix=prefix, Delimiter="/"):
            entries += [
                {"name": f"{bucket}/{each['Prefix'].rstrip('/')}", "size": 0, "type": "directory"}
                for each in page.get("CommonPrefixes", ())
            ]
            entries += [
                {
                    "name": f"{bucket}/{each['Key']}", "size": each["Size"], "type": "file",
                    "LastModified": each["LastModified"],
                }
                for each in page.get("Contents", ())
                if each["Key"] != prefix
            ]  # fmt: skip
        return entries if detail else [entry["name"] for entry in entries]

    def _open(self, path: str, mode: str = "rb", **options: Any) -> _S3File:
        return _S3File(self, path, mode, **options)


def file_resource(url: str, system: AbstractFileSystem, files: Files) -> DltResource:
    """Return files as a resource: those written since the cursor, in the order of their times."""
    listed: Any = filesystem(
        url,
        system,
        file_glob=files.glob,
        files_per_page=1,
        incremental=dlt.sources.incremental("modification_date", row_order="asc"),
    )
    root = urlsplit(url)
    below = Path(root.path).resolve() if root.scheme == "file" else None
    read = _read_jsonl if files.format == "jsonl" else _read_csv

    def rows(items: Iterable[FileItemDict]) -> Iterator[list[dict[str, Any]]]:
        for item in items:
            if below is not None and not _file(item).resolve().is_relative_to(below):
                raise AdapterRefused("a file leads out of its folder by a link")
            for some in read([item], _ROWS):
                yield [{**row, MODIFIED: item["modification_date"]} for row in some]

    resource: DltResource = listed | dlt.transformer(rows, name=files.name)()
    return resource


def _file(item: FileItemDict) -> Path:
    return Path(item.local_file_path)


def _read_jsonl(items: Sequence[FileItemDict], rows: int) -> Iterator[list[Mapping[str, Any]]]:
    """Read JSON, an object on each line; lines end with a line feed, and with nothing else."""
    for item in items:
        with item.open() as file:
            read = (line.removeprefix(BOM_UTF8) if not number else line
                    for number, line in enumerate(file))  # fmt: skip
            lines = (json.loadb(line) for line in read if line.strip())
            while some := list(islice(lines, rows)):
                yield some


def _read_csv(items: Sequence[FileItemDict], rows: int) -> Iterator[list[Mapping[str, Any]]]:
    """Read CSV with names in its first line; all values are text."""
    for item in items:
        with item.open() as file:
            lines = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", newline=""), strict=True)
            while some := list(islice(lines, rows)):
                if any(None in row for row in some):
                    raise AdapterRefused(f"{item['file_name']} has lines longer than its first")
                yield list(some)


def system_of(url: str, outside: Outside) -> AbstractFileSystem:
    """Return the reader of files below a URL.

    Raises:
        ValidationFailed: the operator does not list it.
    """
    if not any(_is_below(url, entry) for entry in outside.hosts):
        raise ValidationFailed(
            f"the operator of this stack does not allow {url} to be read: ask for it to be listed "
            "in ConnectorHosts",
            field="configuration.filesystem.bucketUrl",
        )
    if urlsplit(url).scheme == "file":
        return LocalFileSystem()
    if outside.aws is None:
        raise ValidationFailed("there is no AWS here", field="configuration.filesystem.bucketUrl")
    return S3Files(outside.aws("s3"))


def _is_below(url: str, entry: str) -> bool:
    is_place = entry.startswith(("s3://", "file:///"))
    return is_place and f"{url.rstrip('/')}/".startswith(f"{entry.rstrip('/')}/")


# --- databases by url -----------------------------------------------------------------------------


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
