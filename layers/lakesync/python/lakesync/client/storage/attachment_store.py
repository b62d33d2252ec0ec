"""The attachments that a client's file knows, and the folder beside it that contains their bytes.

Rules of this module
    1. A file under its final name is complete, and has the digest that names it: it is written
       under another name first, and checked.
    2. Any process may remove, or continue, a file under any other name.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from lakesync.client.storage.private_files import make_folder, owner_only
from lakesync.core.attachments import (
    ATTACHMENT_BYTES_MAX,
    SCHEME,
    Digester,
    checked_reference,
    reference_of,
)
from lakesync.errors import BodyTooLarge, NotFound, Unavailable, ValidationFailed

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Sequence
    from typing import BinaryIO, TypeAlias

    from lakesync.client.storage.outbox import DeviceClock
    from lakesync.core.attachments import Attachment
    from lakesync.errors import LakeSyncError

    Source: TypeAlias = "str | Path | bytes | BinaryIO"

# --- entries --------------------------------------------------------------------------------------


class AttachmentStatus(StrEnum):
    """What becomes of an attachment."""

    WAITING = "waiting"
    """It was added here, and is uploaded when there is a network."""
    REFUSED = "refused"
    """The gateway refuses it: its entry has the reason."""
    KEPT = "kept"
    """The gateway has it; its bytes are here too, and may be evicted."""


@dataclass(frozen=True, slots=True)
class AttachmentEntry:
    """An attachment whose bytes are on the device."""

    attachment: Attachment
    status: AttachmentStatus
    code: str
    """Why the gateway refuses it; empty if it does not."""
    message: str
    parts: tuple[str, ...]
    """The digests of its parts; none of one that was fetched."""
    upload: str
    """What the gateway knows its upload by; empty if that is not begun."""


_COLUMNS: Final = "reference, status, code, message, parts, upload"
_WHERE: Final = f"SELECT {_COLUMNS} FROM _lakesync_attachments WHERE "  # noqa: S608 - names
_BEHIND_KEY: Final = len(SCHEME) + 32 + len(":") + 1
_GONE: Final = "no attachment on this device has this reference"


class AttachmentTable:
    """The attachments of one file. Used within the caller's transaction, or its lock."""

    def __init__(self, connection: sqlite3.Connection, clock: DeviceClock) -> None:
        self._run = connection.execute
        self._clock = clock

    def put(self, file: Attachment, status: AttachmentStatus, parts: Sequence[str] = ()) -> None:
        """Record that a file exists here, in place of its former record."""
        self._run(
            "INSERT OR REPLACE INTO _lakesync_attachments "
            "(file_name, reference, status, parts, used_ms) VALUES (?, ?, ?, ?, ?)",
            (file.file_name, str(file), status, json.dumps(parts), self._clock.device_ms()),
        )

    def get(self, file: Attachment) -> AttachmentEntry:
        for entry in self._entries("file_name = ?", file.file_name):
            return entry
        raise NotFound(_GONE, field="reference")

    def added(self, digest: str, size_bytes: int, media_type: str) -> Attachment | None:
        """Return the attachment that was made here of the same content, if one was."""
        content = f"{digest}:{size_bytes}:{media_type}"
        ours = f"parts <> '[]' AND substr(reference, {_BEHIND_KEY}) = ? LIMIT 1"
        return next((entry.attachment for entry in self._entries(ours, content)), None)

    def listed(self, status: AttachmentStatus) -> list[AttachmentEntry]:
        return self._entries("status = ? ORDER BY rowid", status)

    def by_use(self) -> list[AttachmentEntry]:
        """Return those that may be evicted, that which was used longest ago first."""
        return self._entries("status = ? ORDER BY used_ms, rowid", AttachmentStatus.KEPT)

    def file_names(self) -> frozenset[str]:
        rows = self._run("SELECT file_name FROM _lakesync_attachments")
        return frozenset(name for (name,) in rows)

    def _entries(self, where: str, *values: object) -> list[AttachmentEntry]:
        return [
            AttachmentEntry(
                checked_reference(reference), AttachmentStatus(status), code, message,
                tuple(json.loads(parts)), upload,
            )
            for reference, status, code, message, parts, upload in self._run(_WHERE + where, values)
        ]  # fmt: skip

    def note_upload(self, file: Attachment, upload: str) -> None:
        self._change(file, upload=upload)

    def use(self, file: Attachment) -> None:
        self._change(file, used_ms=self._clock.device_ms())

    def end(self, file: Attachment) -> None:
        self._change(file, status=AttachmentStatus.KEPT, upload="", code="", message="")

    def refuse(self, file: Attachment, error: LakeSyncError) -> None:
        refused = AttachmentStatus.REFUSED
        self._change(file, status=refused, code=error.code, message=error.message)

    def wait(self, file: Attachment) -> None:
        self._change(file, status=AttachmentStatus.WAITING, code="", message="")

    def start_elsewhere(self, wanted: Collection[Attachment], *, keep_waiting: bool) -> None:
        """Have files uploaded to another gateway: those wanted there, and those that wait."""
        waiting = (AttachmentStatus.WAITING, AttachmentStatus.REFUSED)
        for entry in self._entries("true"):
            if entry.attachment in wanted or (keep_waiting and entry.status in waiting):
                self._change(entry.attachment, upload="")
                self.wait(entry.attachment)
            elif entry.status in waiting:
                self.remove(entry.attachment)

    def remove(self, file: Attachment) -> None:
        self._run("DELETE FROM _lakesync_attachments WHERE file_name = ?", (file.file_name,))

    def _change(self, file: Attachment, **changes: object) -> None:
        sets = ", ".join(f"{name} = ?" for name in changes)
        self._run(
            f"UPDATE _lakesync_attachments SET {sets} WHERE file_name = ?",  # noqa: S608 - names
            (*changes.values(), file.file_name),
        )


# --- the folder -----------------------------------------------------------------------------------


STRAY_S_MAX: Final = 604_800
"""How long an abandoned download is kept: a week."""
BYTES: Final = "application/octet-stream"
"""The media type of a file without a declared one."""
_PIECE_BYTES: Final = 1_048_576
_PART: Final = ".part"


@contextlib.contextmanager
def disk() -> Iterator[None]:
    """Yield what the disk refuses in our words."""
    try:
        yield
    except FileNotFoundError as exc:
        raise ValidationFailed(f"there is no such file: {exc.filename}", field="source") from exc
    except OSError as exc:
        raise Unavailable(f"the disk reports an error: {exc}; correct it and try again") from exc


class Folder:
    """Files by their names. Made when the first one is written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(f"{path}-attachments")

    def file(self, known: Attachment) -> Path:
        """Return where a file is, once it is there."""
        return self.path / known.file_name

    def part(self, known: Attachment) -> Path:
        """Return where a download is that is not whole."""
        return self.path / f"{known.file_name}{_PART}"

    def write(self, source: Source) -> tuple[Path, Digester]:
        """Copy the content to the disk, and compute its digest."""
        make_folder(self.path)
        new, digester = self.path / f"{uuid4().hex}{_PART}", Digester()
        try:
            with open(new, "wb", opener=owner_only) as target:
                for piece in _pieces(source):
                    digester.update(piece)
                    _check_size(digester.size_bytes)
                    target.write(piece)
                _to_the_disk(target)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        return new, digester

    def append(self, known: Attachment, pieces: Iterator[bytes], start: int) -> None:
        """Continue a download; the part on the disk stays if this is interrupted."""
        make_folder(self.path)
        with open(self.part(known), "r+b" if start else "wb", opener=owner_only) as target:
            target.seek(start)
            target.truncate()
            for piece in pieces:
                target.write(piece)
                if target.tell() > known.size_bytes:
                    break
            _to_the_disk(target)

    def downloaded_bytes(self, known: Attachment) -> int:
        with contextlib.suppress(FileNotFoundError):
            return self.part(known).stat().st_size
        return 0

    def is_whole(self, path: Path, known: Attachment) -> bool:
        """Return whether a file is what an attachment names. Reads all of it."""
        if path.stat().st_size != known.size_bytes:
            return False
        return self.digester(path).digest() == known.digest

    @staticmethod
    def digester(path: Path) -> Digester:
        """Return the digests of a file. Reads all of it."""
        digester = Digester()
        for piece in _pieces(path):
            digester.update(piece)
        return digester

    def read_part(self, known: Attachment, number: int) -> bytes:
        """Return a part of a file; the first is 1."""
        with self.file(known).open("rb") as source:
            source.seek(known.part_start(number))
            return source.read(known.part_bytes(number))

    def remove_strays(self, known: frozenset[str]) -> None:
        """Remove files without a record, and abandoned downloads."""
        oldest = time.time() - STRAY_S_MAX
        for path in self.path.iterdir() if self.path.is_dir() else ():
            is_part = path.name.endswith(_PART)
            if path.stat().st_mtime < oldest if is_part else path.name not in known:
                path.unlink(missing_ok=True)

    def named(self) -> Iterator[Attachment]:
        """Yield the attachments of the existing files, by their names, without media types."""
        for path in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            key, _, rest = path.name.partition("-")
            digest, _, size = rest.partition("-")
            known = reference_of(f"{SCHEME}{key}:{digest}:{size}:{BYTES}")
            if known is not None:
                yield known

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _pieces(source: Source) -> Iterator[bytes]:
    if isinstance(source, bytes | bytearray | memoryview):
        yield bytes(source)
    elif isinstance(source, str | Path):
        with _opened(source) as file:
            yield from _pieces(file)
    elif not callable(getattr(source, "read", None)):
        sentence = f"an attachment is a path, bytes or an open file, not {type(source).__name__}"
        raise ValidationFailed(sentence, field="source")
    else:
        while piece := source.read(_PIECE_BYTES):
            if not isinstance(piece, bytes):
                raise ValidationFailed("open the file for bytes: mode 'rb'", field="source")
            yield piece


def _opened(path: str | Path) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except ValueError as exc:  # a null character, half of a surrogate pair
        raise ValidationFailed(f"{str(path)!r:.80} is no path: {exc}", field="source") from exc


def _check_size(size_bytes: int) -> None:
    if size_bytes > ATTACHMENT_BYTES_MAX:
        raise BodyTooLarge(
            f"an attachment has {ATTACHMENT_BYTES_MAX} bytes at the most", field="source"
        )


def _to_the_disk(target: BinaryIO) -> None:
    target.flush()
    os.fsync(target.fileno())
