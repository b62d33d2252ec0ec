"""The lake's bucket as a folder: what `LakeStore` promises, without a network."""

from __future__ import annotations

import hashlib
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from lakesync.core.deliveries import CLAIMS, CLAIMS_FAILED
from lakesync.materialise.work_queue import ClaimEntry, StoredObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class FileStore:
    """`lakesync.materialise.work_queue.LakeStore` over files. Its clock is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.age_s = 1.0
        """Of every claim."""
        self.set_aside_reasons: dict[str, str] = {}
        self.searched: list[str] = []
        """Where old versions were looked for."""
        self.meanwhile: Callable[[], None] | None = None
        """What somebody else does whenever time goes by."""
        self._lock = threading.Lock()

    @property
    def root(self) -> str:
        return f"file://{self.folder}"

    def pause(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        if self.meanwhile:
            self.meanwhile()

    def put(self, key: str, body: bytes) -> None:
        """Write an object, whatever is there."""
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        # An object is there as a whole or not at all, also for who reads it at this moment.
        with NamedTemporaryFile(dir=self.folder.parent, delete=False) as file:
            file.write(body)
        Path(file.name).replace(path)

    def claims(self, only: str = "") -> Iterator[ClaimEntry]:
        prefix = f"{CLAIMS}{only}/" if only else CLAIMS
        for path in sorted((self.folder / prefix).glob("**/*")):
            if path.is_file():
                yield ClaimEntry(path.relative_to(self.folder).as_posix(), self.age_s)

    def etags(self, prefix: str) -> dict[str, str]:
        keys = (path.relative_to(self.folder) for path in (self.folder / prefix).glob("*"))
        stored = {key.as_posix(): self.read(key.as_posix()) for key in keys}
        return {key: one.etag for key, one in stored.items() if one}

    def read(self, key: str) -> StoredObject | None:
        path = self.folder / key
        if not path.exists():
            return None
        body = path.read_bytes()
        return StoredObject(body, hashlib.sha256(body).hexdigest())

    def put_if_unchanged(self, key: str, body: bytes, etag: str | None) -> str | None:
        with self._lock:
            stored = self.read(key)
            if (stored.etag if stored else None) != etag:
                return None
            self.put(key, body)
            return hashlib.sha256(body).hexdigest()

    def delete(self, key: str) -> None:
        (self.folder / key).unlink(missing_ok=True)

    def old_versions(self, prefix: str) -> Iterator[dict[str, str]]:
        """A folder has none."""
        self.searched.append(prefix)
        yield from ()

    def remove_old_versions(self, prefix: str) -> int:
        return sum(1 for _ in self.old_versions(prefix))

    def forget(self, key: str) -> None:
        self.delete(key)

    def set_aside(self, claim_key: str, body: bytes, reason: str) -> None:
        self.set_aside_reasons[claim_key] = reason
        self.put(CLAIMS_FAILED + claim_key.removeprefix(CLAIMS), body)
        self.delete(claim_key)

    def keys(self, prefix: str) -> list[str]:
        """List what is there, but for the lake's own files."""
        files = (path for path in (self.folder / prefix).glob("**/*") if path.is_file())
        return sorted(path.relative_to(self.folder).as_posix() for path in files)
