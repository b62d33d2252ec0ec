"""Objects in a table of PostgreSQL: for an archive where there is no bucket."""

from __future__ import annotations

import hashlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync.adapters.lake.adapter import (
    PAGE_KEYS_MAX,
    ObjectHead,
    ObjectPage,
    check_key,
    check_page,
)
from lakesync.adapters.sql.transactions import Transactions
from lakesync.errors import NotFound, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lakesync.adapters.postgres.dialect import Postgres
    from lakesync.adapters.sql.dialect import Cursor

    Rows = Sequence[Sequence[Any]]

T = TypeVar("T")

TABLE: Final = "lakesync_objects"
_MAKE: Final = (
    f'CREATE TABLE IF NOT EXISTS {TABLE} (key text COLLATE "C" PRIMARY KEY, body bytea NOT NULL, '
    "etag text NOT NULL, modified_at timestamptz NOT NULL)"
)
_ROW: Final = f"INSERT INTO {TABLE} (key, body, etag, modified_at) VALUES (%s, %s, %s, now())"  # noqa: S608 - a name of ours
_PUT: Final = (
    f"{_ROW} ON CONFLICT (key) DO UPDATE SET body = excluded.body, etag = excluded.etag, "
    f"modified_at = excluded.modified_at WHERE {TABLE}.etag <> excluded.etag"
)
_PUT_NEW: Final = f"{_ROW} ON CONFLICT (key) DO NOTHING"
_HEADS: Final = (
    f"SELECT key, length(body), etag, modified_at FROM {TABLE} "  # noqa: S608 - a name of ours
    "WHERE key LIKE %s AND key > %s ORDER BY key LIMIT %s"
)
_DELETED_AT_ONCE: Final = 1_000


class PostgresObjects:
    """`lakesync.adapters.lake.adapter.LakeAdapter` in one table of a database.

    The table `TABLE` is made with the first object. A key is any text without NUL; an object has
    less than 1 GB, and is written whole in one statement. Thread-safe, over one connection.

    Args:
        dialect: the database, and how to connect to it.
    """

    def __init__(self, dialect: Postgres) -> None:
        self._dialect = dialect
        self._transactions = Transactions(dialect, "")
        self._lock = threading.Lock()
        self._is_made = False

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Store an object."""
        del content_type
        self._write(_PUT, key, body)

    def put_new_object(self, key: str, body: bytes, content_type: str) -> bool:
        """Store an object unless there is one."""
        del content_type
        return self._write(_PUT_NEW, key, body) == 1

    def get_object(self, key: str) -> bytes:
        """Return an object's bytes."""
        return self._one("body", key)

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return some bytes of an object."""
        part = self._one(f"substring(body FROM {int(start) + 1} FOR {int(size)})", key)
        if not part:
            raise NotFound(f"the object {key} ends before {start}")
        return part

    def head_object(self, key: str) -> ObjectHead:
        """Return the description of an object."""
        page = self._heads(_literally(_checked(key)), "", 1)
        if not page:
            raise NotFound(f"there is no object {key}")
        return page[0]

    def list_objects(self, prefix: str) -> list[str]:
        """Return the keys under a prefix, in order."""
        return [head.key for head in self._all(prefix)]

    def list_page(self, prefix: str, after: str = "", keys_max: int = PAGE_KEYS_MAX) -> ObjectPage:
        """Return some objects under a prefix."""
        check_page(keys_max)
        heads = self._heads(f"{_literally(prefix)}%", after, keys_max + 1)
        return ObjectPage(tuple(heads[:keys_max]), len(heads) > keys_max)

    def delete_object(self, key: str) -> None:
        """Remove an object."""
        self.delete_objects([key])

    def delete_objects(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        wanted = list(keys)
        for at in range(0, len(wanted), _DELETED_AT_ONCE):
            some = wanted[at : at + _DELETED_AT_ONCE]
            self._read(partial(_deleted, some), None)

    def close(self) -> None:
        """Close the connection; the next operation opens a new one."""
        with self._lock:
            self._transactions.close()

    def _write(self, statement: str, key: str, body: bytes) -> int:
        etag = hashlib.sha256(body).hexdigest()
        row = (_checked(key), bytes(body), etag)

        def work(cursor: Cursor) -> int:
            cursor.execute(statement, row)
            return cursor.rowcount

        with self._lock:
            if not self._is_there():
                self._transactions.run(self._make)
                self._is_made = True
            return self._transactions.run(lambda cursor, _: work(cursor))

    def _one(self, what: str, key: str) -> bytes:
        statement = f"SELECT {what} FROM {TABLE} WHERE key = %s"  # noqa: S608 - expressions of ours

        def work(cursor: Cursor) -> Rows:
            cursor.execute(statement, (_checked(key),))
            return cursor.fetchall()

        rows = self._rows(work)
        if not rows:
            raise NotFound(f"there is no object {key}")
        return bytes(rows[0][0])

    def _all(self, prefix: str) -> Iterator[ObjectHead]:
        after = ""
        while True:
            page = self.list_page(prefix, after)
            yield from page.objects
            if not page.has_more:
                return
            after = page.objects[-1].key

    def _heads(self, pattern: str, after: str, most: int) -> list[ObjectHead]:
        def work(cursor: Cursor) -> Rows:
            cursor.execute(_HEADS, (pattern, after, most))
            return cursor.fetchall()

        return [ObjectHead(*row) for row in self._rows(work)]

    def _rows(self, work: Callable[[Cursor], Rows]) -> Rows:
        nothing: Rows = ()
        return self._read(work, nothing)

    def _read(self, work: Callable[[Cursor], T], nothing: T) -> T:
        """Do what needs no table, if there is none; a reader may have no right to make one."""
        with self._lock:
            if not self._is_there():
                return nothing
            return self._transactions.run(lambda cursor, _: work(cursor))

    def _is_there(self) -> bool:
        def work(cursor: Cursor, _: object) -> bool:
            cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (TABLE,))
            row = cursor.fetchone()
            return row is not None and bool(row[0])

        self._is_made = self._is_made or self._transactions.run(work)
        return self._is_made

    def _make(self, cursor: Cursor, _: object) -> None:
        with self._dialect.definitions_locked(cursor):
            cursor.execute(_MAKE)


def _deleted(keys: list[str], cursor: Cursor) -> None:
    cursor.execute(f"DELETE FROM {TABLE} WHERE key = ANY(%s)", (keys,))  # noqa: S608 - a name of ours


def _checked(key: str) -> str:
    check_key(key)
    if "\0" in key:
        raise ValidationFailed("a key in PostgreSQL has no NUL", field="key")
    return key


def _literally(text: str) -> str:
    """Return text as a pattern of LIKE that only it matches."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
