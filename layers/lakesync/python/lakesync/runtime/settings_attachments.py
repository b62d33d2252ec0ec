"""The settings of the function that signs addresses; see `lakesync.runtime.settings`."""

from __future__ import annotations

from dataclasses import dataclass

from lakesync.runtime.settings import QuotaSettings, not_empty, positive, variable


@dataclass(frozen=True, kw_only=True)
class AttachmentSettings(QuotaSettings):
    """What ``functions/attachments`` needs."""

    lake_bucket: str = variable("LAKE_BUCKET", not_empty)
    """Where attachments are, below a prefix of their own."""
    attachment_bytes_max: int = variable("ATTACHMENT_BYTES_MAX", positive)
    """The largest file that is taken."""
