"""LakeSync: a declarative sync engine for AWS.

Apps use `lakesync.client`; everything they meet of the rest is re-exported here.
"""

from lakesync.errors import LakeSyncError, Retry
from lakesync.result import Err, Ok, Result

__all__ = ["Err", "LakeSyncError", "Ok", "Result", "Retry"]
