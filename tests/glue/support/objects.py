"""Objects as files: `lakesync.ports.ObjectStore`, opened by path in any process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lakesync.errors import AdapterFailed, NotFound


@dataclass(frozen=True)
class FolderObjects:
    folder: str
    full_behind: int = 1_000_000
    """How many objects the folder takes."""

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        assert content_type
        if len(self.list_objects("")) >= self.full_behind:
            raise AdapterFailed("the folder is full")
        path = Path(self.folder, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def get_object(self, key: str) -> bytes:
        path = Path(self.folder, key)
        if not path.is_file():
            raise NotFound(f"there is no object {key}")
        return path.read_bytes()

    def get_range(self, key: str, start: int, size: int) -> bytes:
        return self.get_object(key)[start : start + size]

    def list_objects(self, prefix: str) -> list[str]:
        root = Path(self.folder)
        keys = (path.relative_to(root).as_posix() for path in root.glob("**/*") if path.is_file())
        return sorted(key for key in keys if key.startswith(prefix))

    def delete_object(self, key: str) -> None:
        Path(self.folder, key).unlink(missing_ok=True)
