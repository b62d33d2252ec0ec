"""PyIceberg's files on S3, of which each small one is written by one request.

Arrow begins a multipart upload as soon as a file is opened: three requests for each file, however
small, and a batch writes nine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.io.pyarrow import PyArrowFileIO

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

NAME = f"{__name__}.LakeFileIO"
"""For PyIceberg's property ``py-io-impl``."""


class LakeFileIO(PyArrowFileIO):
    """Opens a file once its first part is full; one that is closed before is put whole."""

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        opened = super()._initialize_s3_fs(netloc)
        make, (options,) = opened.__reduce__()
        return make({**options, "allow_delayed_open": True})
