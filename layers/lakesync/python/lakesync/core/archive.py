"""Where a destination's history goes when it is old: a folder of a bucket, as it is declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ARCHIVED_KINDS: Final = ("postgres", "mysql", "bigquery")
"""Kinds of destinations that may have an archive; the others are in a bucket already."""
ARCHIVE_DAYS_MAX: Final = 30
"""Days after which history is archived at the latest: some before a release that knows of no
archive has it forgotten (`lakesync.adapters.database.HISTORY_MS`)."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Where history goes, and when."""

    secret: str
    """The name of the secret that holds the URL of a bucket's folder."""
    after_days: int


def archive_to_json(archive: Archive | None) -> dict[str, Any]:
    """Give the field of a declaration that says so; none without an archive."""
    if archive is None:
        return {}
    return {"archive": {"secret": archive.secret, "afterDays": archive.after_days}}


def archive_from_stored(item: Mapping[str, Any] | None) -> Archive | None:
    """Read what `archive_to_json` wrote."""
    return None if item is None else Archive(item["secret"], item["afterDays"])
