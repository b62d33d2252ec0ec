"""What answers clients about attachments. Part of `lakesync.runtime.wiring`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from lakesync.runtime import wiring

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.gateway.attachments import AttachmentService
    from lakesync.ports import SignedObjects
    from lakesync.runtime.settings_attachments import AttachmentSettings

_ANSWER_S_MAX: Final = 20
"""How long S3 may take: to put a large file's parts together takes seconds."""


def attachment_service(settings: AttachmentSettings) -> Callable[[], AttachmentService]:
    """Return a function that creates the service at first use: the SDK is most of a cold start."""

    @cache
    def service() -> AttachmentService:
        from lakesync.gateway.attachments import AttachmentService  # noqa: PLC0415

        return AttachmentService(
            wiring.buffer(settings),
            signed_objects(settings),
            bytes_max=settings.attachment_bytes_max,
        )

    return service


def signed_objects(settings: AttachmentSettings) -> SignedObjects:
    """Return attachments on S3."""
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    from lakesync.adapters.attachments.s3 import S3SignedObjects  # noqa: PLC0415

    config = Config(
        connect_timeout=2,
        read_timeout=_ANSWER_S_MAX,
        retries={"total_max_attempts": 3, "mode": "standard"},
        signature_version="s3v4",
        # The bucket's own host in its own region: another would redirect, and a signature is for
        # one host.
        s3={"addressing_style": "virtual"},
    )
    make: Any = boto3.client
    client = make("s3", region_name=settings.region, config=config)
    return S3SignedObjects(settings.lake_bucket, client)
