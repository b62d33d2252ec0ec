"""Where a destination's old history is archived: a folder of a bucket, as it is declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

UNARCHIVED_KINDS: Final = ("s3", "iceberg")
"""Kinds of destinations that may have no archive: they are in a bucket already."""
ARCHIVE_DAYS_MAX: Final = 30
"""The most days before history is archived. It is less than the time after which a release that
knows no archive forgets history (`lakesync.adapters.database.HISTORY_MS`)."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Where history is archived, and when."""

    secret: str
    """The name of the secret that holds the URL of a bucket's folder."""
    after_days: int


def archive_to_json(archive: Archive | None) -> dict[str, Any]:
    """Return the field of a declaration for an archive; no field without an archive."""
    if archive is None:
        return {}
    return {"archive": {"secret": archive.secret, "afterDays": archive.after_days}}


def archive_from_stored(item: Mapping[str, Any] | None) -> Archive | None:
    """Read what `archive_to_json` wrote."""
    return None if item is None else Archive(item["secret"], item["afterDays"])
