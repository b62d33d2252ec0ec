"""The folder beside a client's file that contains the bytes of its attachments.

Rules of this module
    1. A file under its final name is complete, and has the digest that names it: it is written
       under another name first, and checked.
    2. Any process may remove, or continue, a file under any other name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from lakesync.client.private_files import make_folder, owner_only
from lakesync.core.attachments import ATTACHMENT_BYTES_MAX, SCHEME, Digester, reference_of
from lakesync.errors import BodyTooLarge, Unavailable, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO, TypeAlias

    from lakesync.core.attachments import Attachment

    Source: TypeAlias = "str | Path | bytes | BinaryIO"

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
        """Copy the content to the disk, and compute its digest.

        Raises:
            BodyTooLarge: no attachment may be so large.
            ValidationFailed: there is no such file, or it is none that can be read.
        """
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
        """Return how much of a download is there."""
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
        """Remove all of it."""
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
