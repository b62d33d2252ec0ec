"""What an erasure searched, removed and left: the lake's part of its proof. Names no row."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ErasedTable:
    """What became of the rows in one lake table."""

    name: str
    kind: str
    prefix: str
    """Where its files are in the bucket."""
    removed: int = 0
    """Deltas that were deleted by this run."""
    files: int = 0
    """Files that were looked into, whoever names them."""
    left: int = 0
    """Rows in these files that bear values of what was to be erased."""
    kept_by: list[str] = field(default_factory=list)
    """Branches and tags that are not LakeSync's: they keep old versions that were not erased."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "table": self.name.replace("`", ""),
            "kind": self.kind,
            "removed": self.removed,
            "files": self.files,
            "left": self.left,
            "keptBy": self.kept_by,
        }


@dataclass(slots=True)
class ErasureReport:
    stack: str
    """The stack's ARN."""
    tables: list[ErasedTable] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)
    """Prefixes of the bucket whose old versions were removed."""
    versions_removed: int = 0
    versions_left: int = 0
    again_ms: int = 0
    """From when on a repetition removes what is left; 0 if nothing is."""

    def as_json(self) -> str:
        return json.dumps(
            {
                "tables": [table.as_dict() for table in self.tables],
                "searched": self.searched,
                "versionsRemoved": self.versions_removed,
                "versionsLeft": self.versions_left,
                "againMs": self.again_ms,
            }
        )
