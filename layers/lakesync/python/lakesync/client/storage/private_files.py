"""Files that only their owner can read: by their mode, and by encryption.

Rules of this module
    1. Only their owner may read a client's files and folders, whatever the umask is. SQLite gives
       the files beside a database (``-wal``, ``-shm``, ``-journal``) the database's own mode.
    2. A key is in no cached statement, error, log or ``repr``. Once the file is open, the key is
       only in SQLCipher, which overwrites it as the file is closed.
    3. Exceptions of SQLCipher's module are raised as the standard library's: no other code knows
       that there are two.

An encrypted file has SQLCipher in place of SQLite, if it is installed: the database, its log and
its temporary pages are encrypted, AES-256 with an HMAC on each page. Law K31:
``docs/spec/client.md``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.errors import ValidationFailed, WrongKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    GivenKey: TypeAlias = "str | bytes | Callable[[], str | bytes]"
    """A passphrase, 32 random bytes, or a function that returns one of them."""

# --- modes of files -------------------------------------------------------------------------------


_FILE: Final = 0o600
_FOLDER: Final = 0o700


def owner_only(path: str, flags: int) -> int:
    """Open a file, as ``opener`` of ``open``; one that is made is its owner's alone."""
    descriptor = os.open(path, flags, _FILE)
    if flags & os.O_CREAT:
        os.chmod(path, _FILE)  # noqa: PTH101 - the umask can have taken the owner's rights too
    return descriptor


@contextlib.contextmanager
def made_file(path: str | Path) -> Iterator[None]:
    """Make a file before the block opens it, if there is none; removed again if that fails."""
    is_made = False
    with contextlib.suppress(OSError, ValueError), open(path, "xb", opener=owner_only):
        is_made = True
    try:
        yield
    except BaseException:
        if is_made:
            os.unlink(path)  # noqa: PTH108 - a path as it was given
        raise


def make_folder(path: Path) -> None:
    """Make a folder; one that is there stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=_FOLDER)
        path.chmod(_FOLDER)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file with its times, and not with who may read it."""
    with source.open("rb") as read, open(target, "wb", opener=owner_only) as written:
        shutil.copyfileobj(read, written)
    times = source.stat()
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))


# --- encryption -----------------------------------------------------------------------------------


KEY_BYTES: Final = 32
"""Bytes of a key that is no passphrase: AES-256."""
PASSPHRASE_BYTES_MAX: Final = 1_024
"""Bytes of a passphrase."""
_EXECUTE: Final = ("execute", "executemany", "executescript")
_OF_CURSORS: Final = (*_EXECUTE, "fetchone", "fetchmany", "fetchall", "__next__")
_OF_CONNECTIONS: Final = (
    *_EXECUTE, "cursor", "commit", "rollback", "close", "set_authorizer", "create_collation",
    "create_function", "interrupt",
)  # fmt: skip
"""Methods that may raise."""
_PROPERTIES: Final = ("in_transaction", "total_changes")
"""The same of what is no method."""


class Key:
    """A key in the form for SQLCipher.

    Args:
        given: a passphrase, from which a key is derived each time a file is opened (some tenths of
            a second); or 32 random bytes, which are the key; or a function that returns either,
            called once.

    Raises:
        ValidationFailed: it is none of these.
    """

    __slots__ = ("_pragma",)

    def __init__(self, given: GivenKey) -> None:
        value = given() if callable(given) else given
        if isinstance(value, bytes) and len(value) == KEY_BYTES:
            self._pragma = f"PRAGMA key = \"x'{value.hex()}'\""
            return
        text = _bytes_of(value) if isinstance(value, str) else b""
        if not 0 < len(text) <= PASSPHRASE_BYTES_MAX:
            raise ValidationFailed(
                f"a key is text of 1 to {PASSPHRASE_BYTES_MAX} bytes, or {KEY_BYTES} random bytes",
                field="key",
            )
        self._pragma = f"PRAGMA hexkey = '{text.hex()}'"

    def unlock(self, connection: sqlite3.Connection, *, is_damaged: bool = False) -> None:
        """Tell SQLCipher the key; `WrongKey` if it does not open the file."""
        # The connection does not keep a script among its statements. SQLCipher would write the
        # exception's text to the app's standard error.
        connection.executescript(f"PRAGMA cipher_log_level = NONE; {self._pragma}")
        if is_damaged:
            connection.execute("PRAGMA writable_schema = ON").close()
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").close()
        except sqlite3.DatabaseError as exc:
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_NOTADB:
                if is_damaged:
                    return
                raise
            raise WrongKey(
                "this key does not open the client's file: it has another one, or is not "
                "encrypted; nothing was changed",
                field="key",
            ) from None

    def connect(
        self, target: str, *, factory: object = None, is_damaged: bool = False, **options: Any
    ) -> sqlite3.Connection:
        """Open a file, as `sqlite3.connect` does; a damaged one as far as it can be read."""
        del factory  # a connection of the standard library
        module, connection_class = _sqlcipher()
        try:
            connection: sqlite3.Connection = module.connect(
                target, factory=connection_class, **options
            )
        except module.Error as exc:
            raise _same(exc) from exc
        try:
            self.unlock(connection, is_damaged=is_damaged)
        except BaseException:
            connection.close()
            raise
        return connection


def given_key(given: GivenKey | Key | None) -> Key | None:
    """Return the key that was given, if one was; raises as `Key` does."""
    return Key(given) if given is not None and not isinstance(given, Key) else given


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return b""


@cache
def _sqlcipher() -> tuple[Any, Any]:
    """Return SQLCipher's module, and a connection of it that raises `sqlite3`'s exceptions."""
    try:
        from sqlcipher3 import dbapi2  # noqa: PLC0415 - only who has a key needs it
    except ModuleNotFoundError as exc:
        from lakesync.installing import how_to_install  # noqa: PLC0415 - as above

        command = how_to_install("encryption")
        raise ImportError(f"an encrypted file needs SQLCipher: run {command}") from exc
    cursor_class = type("Cursor", (dbapi2.Cursor,), _translated(dbapi2, dbapi2.Cursor, _OF_CURSORS))
    methods = _translated(dbapi2, dbapi2.Connection, _OF_CONNECTIONS)
    opened = methods["cursor"]
    for name in _PROPERTIES:
        given = getattr(dbapi2.Connection, name).__get__
        methods[name] = property(_translating(dbapi2, given))

    def cursor(connection: Any, factory: Any = cursor_class) -> Any:
        return opened(connection, factory)

    return dbapi2, type("Connection", (dbapi2.Connection,), {**methods, "cursor": cursor})


def _translated(module: Any, owner: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: _translating(module, getattr(owner, name)) for name in names}


def _translating(module: Any, method: Callable[..., Any]) -> Any:
    faults = (module.Error, module.Warning)

    def translated(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except faults as exc:
            raise _same(exc) from exc

    return translated


def _same(exc: Exception) -> Exception:
    same: Exception = getattr(sqlite3, type(exc).__name__, sqlite3.DatabaseError)(*exc.args)
    for name in ("sqlite_errorcode", "sqlite_errorname"):
        if hasattr(exc, name):
            setattr(same, name, getattr(exc, name))
    return same
