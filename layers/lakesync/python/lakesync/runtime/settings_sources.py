"""The settings of the functions that answer pulls; see `lakesync.runtime.settings`."""

from __future__ import annotations

from dataclasses import dataclass

from lakesync.runtime.settings import (
    BufferSettings,
    PullSettings,
    not_empty,
    read_hosts,
    variable,
)


@dataclass(frozen=True, kw_only=True)
class PullAndSourceSettings(PullSettings):
    """What ``functions/pull`` needs, but for tickets."""

    source_function: str = variable("SOURCE_FUNCTION", not_empty)
    """The name of ``functions/pull_source``, which answers pulls from declared databases."""


@dataclass(frozen=True, kw_only=True)
class SourcePullSettings(BufferSettings):
    """What ``functions/pull_source`` needs."""

    secret_prefix: str = variable("SECRET_PREFIX", not_empty)
    """What the names of the secrets begin with that hold databases' URLs."""
    database_hosts: tuple[str, ...] = variable("DATABASE_HOSTS", read_hosts, ())
    """Which hosts of databases may be reached that are not public."""
