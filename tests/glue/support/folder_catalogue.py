"""Spark's catalogue in a folder, for PyIceberg: the same tables, changed by the same rule.

A commit makes the metadata's next version, which only one can make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import update_table_metadata

if TYPE_CHECKING:
    from pathlib import Path


class FolderCatalogue(NoopCatalog):
    """A catalogue of tables that Spark has made."""

    def __init__(self, warehouse: Path) -> None:
        super().__init__("folder")
        self.warehouse = warehouse

    def list_tables(self, namespace: Any) -> list[Any]:
        folder = self.warehouse / str(namespace)
        return [(str(namespace), one.name) for one in sorted(folder.iterdir())]

    def load_table(self, identifier: Any) -> Table:
        path = self._newest(identifier)
        io = PyArrowFileIO()
        metadata = FromInputFile.table_metadata(io.new_input(str(path)))
        return Table(tuple(identifier), metadata, str(path), io, self)

    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> CommitTableResponse:
        path = self._newest(table.name())
        current = FromInputFile.table_metadata(table.io.new_input(str(path)))
        for requirement in requirements:
            requirement.validate(current)
        new = update_table_metadata(current, updates, metadata_location=str(path))
        version = _version(path) + 1
        target = path.with_name(f"v{version}.metadata.json")
        try:
            with target.open("x") as file:
                file.write(new.model_dump_json())
        except FileExistsError as exc:
            raise CommitFailedException("somebody was quicker") from exc
        (path.parent / "version-hint.text").write_text(str(version))
        return CommitTableResponse(metadata=new, **{"metadata-location": str(target)})

    def _newest(self, identifier: Any) -> Path:
        metadata = self.warehouse.joinpath(*identifier, "metadata")
        versions = list(metadata.glob("v*.metadata.json"))
        if not versions:
            raise NoSuchTableError(f"there is no table {identifier}")
        return max(versions, key=_version)


def _version(path: Path) -> int:
    return int(path.name.removeprefix("v").partition(".")[0])
