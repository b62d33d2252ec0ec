"""LakeSync: a declarative sync engine for AWS.

Apps use `lakesync.client`; everything they meet of the rest is re-exported here. ``__version__`` is
the version of the installed package.
"""

from lakesync.errors import LakeSyncError, Retry
from lakesync.result import Err, Ok, Result

__all__ = ["Err", "LakeSyncError", "Ok", "Result", "Retry"]


def __getattr__(name: str) -> str:
    """Return the version of the installed package, read when it is asked for."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # noqa: PLC0415 - takes longer than the whole import

    return version("lakesync")
