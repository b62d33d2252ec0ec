"""Where a destination's old history is archived, as it is declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

UNARCHIVED_KINDS: Final = ("s3", "iceberg")
"""Kinds of destinations that may have no archive: they are in a bucket already."""
BUCKET: Final = "s3"
ARCHIVE_KINDS: Final = (BUCKET, "postgres")
"""What an archive may be: a folder of a bucket, or a table of another database."""
ARCHIVE_DAYS_MAX: Final = 30
"""The most days before history is archived. It is less than the time after which a release that
knows no archive forgets history (`lakesync.adapters.database.HISTORY_MS`)."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Where history is archived, and when."""

    secret: str
    """The name of the secret that holds the URL of the folder or database."""
    after_days: int
    kind: str = BUCKET
    """One of `ARCHIVE_KINDS`."""


def archive_to_json(archive: Archive | None) -> dict[str, Any]:
    """Return the field of a declaration for an archive; no field without an archive."""
    if archive is None:
        return {}
    kind = {} if archive.kind == BUCKET else {"kind": archive.kind}
    return {"archive": {"secret": archive.secret, "afterDays": archive.after_days, **kind}}


def archive_from_stored(item: Mapping[str, Any] | None) -> Archive | None:
    """Read what `archive_to_json` wrote."""
    return (
        None
        if item is None
        else Archive(item["secret"], item["afterDays"], item.get("kind", BUCKET))
    )
