"""The settings of the function that runs actions; see `lakesync.runtime.settings`."""

from __future__ import annotations

from dataclasses import dataclass

from lakesync.runtime.settings import (
    BufferSettings,
    not_empty,
    read_hosts,
    variable,
    words_or_none,
)


@dataclass(frozen=True, kw_only=True)
class ActionSettings(BufferSettings):
    """What ``functions/actions`` needs."""

    actions_table: str = variable("ACTIONS_TABLE", not_empty)
    """What is remembered of actions."""
    action_secrets: str = variable("ACTION_SECRETS", not_empty)
    """What the names of action handlers' secrets begin with."""
    action_hosts: tuple[str, ...] = variable("ACTION_HOSTS", words_or_none, ())
    """Where webhooks may go."""
    database_hosts: tuple[str, ...] = variable("DATABASE_HOSTS", read_hosts, ())
    """Which hosts of databases may be reached that are not public."""
